"""The `.properties` file of the MultiLangDaemon -> immutable settings. Imports nothing of ours.

Others need only `load`, what it returns, and the error that it raises.
"""

from properties.loader import LoadedConfiguration, load
from properties.remarks import ConfigurationError, Level, Remark
from properties.settings import Settings

__all__ = ["ConfigurationError", "Level", "LoadedConfiguration", "Remark", "Settings", "load"]
