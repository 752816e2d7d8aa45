"""The `.properties` file of the MultiLangDaemon -> immutable settings. Imports nothing of ours.

`load` is the way in; what it returns, and the error it raises, is all that others need.
"""

from properties.errors import ConfigurationError
from properties.loader import LoadedConfiguration, load
from properties.remarks import Level, Remark
from properties.settings import Settings

__all__ = ["ConfigurationError", "Level", "LoadedConfiguration", "Remark", "Settings", "load"]
