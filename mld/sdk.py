"""The SDK for record processors written in Python. Use it by `from mld.sdk import RecordProcessor, run`."""

from mld.processors.sdk import *  # noqa: F403  # what `__all__` there names
