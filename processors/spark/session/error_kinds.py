"""`ErrorKind`: the kinds of exceptions, by their meaning for the next attempt. `Cause`: one exception of a chain.

Values only. `error_classes` decides of which kind an exception is.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class ErrorKind(Enum):
    """The meaning of an exception. If its causes are of several kinds, the kind that comes first in
    this list counts.
    """

    ROW = "a row that cannot be computed, or that the table does not take"
    DISK_FULL = "no room"
    FORBIDDEN = "no permission"
    CONFLICT = "somebody else has committed, or changed the table, meanwhile"
    GONE = "a file that the job reads is gone"
    AWAY = "a service does not answer, or cannot now"
    SHAPE = "what was asked for cannot be done, whatever the rows"
    UNKNOWN = "nobody can say: a smaller batch tells more"


class Cause(NamedTuple):
    """One exception of a chain of causes: the names of its class and superclasses, and the values of its fields."""

    names: tuple[str, ...]
    state: str = ""
    """SQLSTATE."""
    condition: str = ""
    """Spark's error condition, such as `FAILED_READ_FILE.FILE_NOT_EXIST`."""
    status: int = 0
    """HTTP status of AWS's answer."""
    text: str = ""
    """The exception's message, without a stack."""
