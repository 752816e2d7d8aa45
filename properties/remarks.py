"""A remark on a line of a properties file: one value, used for errors, warnings and `mld check` alike.

It names the thing (`key`), the place (`file:line`, `-D` or the file) and the remedy. It never holds a secret: it is
made of displayed text (see `redaction`), never of a raw value of a credentials key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

OVERRIDE_PLACE = "-D"


class Level(Enum):
    """How much a remark matters: an error stops the start, `mld.strict` turns warnings into errors."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Remark:
    """One finding; `key` is empty when it concerns the file as a whole."""

    level: Level
    key: str
    place: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        subject = f"{self.place}: {self.key}: " if self.key else f"{self.place}: "
        return subject + self.message + (f"; {self.remedy}" if self.remedy else "")

    def as_error(self) -> Remark:
        return replace(self, level=Level.ERROR)
