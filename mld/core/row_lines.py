"""`RowLines`: limits how many log lines of one kind the rows of a table can cause.

Whoever may write into the table can make up any number of odd rows, and new ones for each read. A few log lines of each
kind show what is wrong; the commands that read the table show all rows.
"""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.token_budget import BudgetLimit, ReportedBudget

log = logging.getLogger(__name__)

LINES = BudgetLimit("row_lines", 20, 60.0)
"""Lines of one kind in a minute. A table that has so many odd rows at once has one fault, not twenty."""


class RowLines:
    """The lines about one kind of row; `kind` completes "lines about …"."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._lines = ReportedBudget(LINES)

    def may_log(self) -> bool:
        """Return whether one more row may be logged now. If not, log once a minute that rows are left out."""
        now = self._clock.monotonic()
        if self._lines.allows(now):
            self._lines.charge(now)
            return True
        if self._lines.begin_report(now):
            log.warning(
                "more than %d lines about %s within a minute; the others are left out, and mld doctor reads them all",
                LINES.tokens,
                self._kind,
                extra={"action": "row_lines_left_out", "kind": self._kind},
            )
        return False
