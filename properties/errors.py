"""The one error of this package. It carries every problem found, so that a file can be corrected at once."""

from __future__ import annotations

from collections.abc import Sequence

from properties.remarks import Level, Remark


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
