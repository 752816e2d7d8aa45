"""For record processors written in Python: `from mld.sdk import RecordProcessor, run`."""

from mld.processors.sdk import *  # noqa: F403  # what `__all__` there names
