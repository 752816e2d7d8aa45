"""The kinds of exceptions, named by what they mean for the next attempt; and one exception of a chain of causes.

Values only. `error_classes` decides which kind an exception is.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ErrorKind(Enum):
    """What an exception means. If the causes have several kinds, the first one in this list counts."""

    ROW = "a row that cannot be computed, or that the table does not take"
    DISK_FULL = "no room"
    FORBIDDEN = "no permission"
    CONFLICT = "somebody else has committed, or changed the table, meanwhile"
    GONE = "a file that the job reads is gone"
    AWAY = "a service does not answer, or cannot now"
    SHAPE = "what was asked for cannot be done, whatever the rows"
    UNKNOWN = "nobody can say: a smaller batch tells more"


class Cause(NamedTuple):
    """One exception of a chain: its class and superclasses, and what it reports about itself."""

    names: tuple[str, ...]
    state: str = ""
    """SQLSTATE."""
    condition: str = ""
    """Spark's error condition, such as `FAILED_READ_FILE.FILE_NOT_EXIST`."""
    status: int = 0
    """HTTP status of AWS's answer."""
    text: str = ""
    """Its message, without a stack."""
