"""`RowLines`: how many log lines of one kind the rows of a table may cause.

Whoever may write into the table can make up any number of rows, and new ones for each read. Some of each kind show what
is wrong; the commands that read the table show the rest.
"""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.token_budget import BudgetLimit, TokenBudget

log = logging.getLogger(__name__)

LINES = BudgetLimit("row_lines", 20, 60.0)
"""A table with as many odd rows at once is one fault, not twenty."""
SAID = BudgetLimit("said", 1, 60.0)


class RowLines:
    """The lines about one kind of row; `kind` completes "lines about …"."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._clock = clock
        self._lines = TokenBudget(LINES)
        self._said = TokenBudget(SAID)

    def may_log(self) -> bool:
        """Return whether one more row may be logged now. If not, say once a minute that rows are left out."""
        now = self._clock.monotonic()
        if self._lines.allows(now):
            self._lines.charge(now)
            return True
        if self._said.allows(now):
            self._said.charge(now)
            log.warning(
                "more than %d lines about %s within a minute; the others are left out, and mld doctor reads them all",
                LINES.tokens,
                self._kind,
                extra={"action": "row_lines_left_out", "kind": self._kind},
            )
        return False
