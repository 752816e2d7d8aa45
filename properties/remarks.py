"""`Remark`: an error, a warning or a note on the configuration, with the key, the place (`file:line`, `-D` or the file)
and the remedy.

A remark never contains a secret: it is made of text that may be shown (see `redaction`), never of the raw value of a
credentials key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum

OVERRIDE_PLACE = "-D"


class Level(Enum):
    """How serious a remark is: with an error the daemon does not start, and `mld.strict` turns warnings into errors."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Remark:
    """One remark. `place` is the file and line that it is about, or `-D`; `key` is empty if it concerns the file as a
    whole.
    """

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


def nearest(name: str, known: Iterable[str], cutoff: float) -> str | None:
    """Return the known name that is most similar to a misspelled one, in upper or lower case; None if none is similar
    enough.
    """
    import difflib  # imported here, as it takes time and a file without mistakes does not need it

    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


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

    @property
    def warnings(self) -> tuple[Remark, ...]:
        """What else is doubtful in the file: a key that is missing may be there, misspelt."""
        return tuple(remark for remark in self.remarks if remark.level is Level.WARNING)
