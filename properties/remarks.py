"""A remark on a line of a properties file: one value, used for errors, warnings and `mld check` alike.

A remark names the thing (`key`), the place (`file:line`, `-D` or the file) and the remedy. It never holds a secret: it
is made of displayed text (see `redaction`), never of a raw value of a credentials key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

    def to_json(self) -> dict[str, str]:
        """Return the remark as plain JSON types."""
        return asdict(self) | {"level": self.level.value}


class ConfigurationError(Exception):
    """The configuration cannot be used.

    `problems` are the errors, in the order in which Java would check them; `remarks` is everything that was found, with
    warnings. The text has one problem per line: place, key, what is wrong, remedy.
    """

    def __init__(self, problems: Sequence[Remark], remarks: Sequence[Remark] | None = None) -> None:
        assert problems, "an error without a problem"
        assert all(problem.level is Level.ERROR for problem in problems)
        self.problems = tuple(problems)
        self.remarks = tuple(problems if remarks is None else remarks)
        super().__init__("\n".join(str(problem) for problem in self.problems))
