"""`TokenBudget`: limits how much work of one kind producers can make a daemon do in a certain time. Pure.

Producers decide what is in records, and so what records make a daemon do: calls of AWS, work of a decoder, lines of a
log. Each kind of such work has a budget for each shard. A full budget has `tokens`, which may be spent at once. After
`period_s` in which nothing is spent, an empty budget is full again. Times are monotonic seconds, passed in.

    1. ask `allows(now)` before the work: it is allowed while at least one token is left
    2. `charge(now, tokens)` what the work has cost, as soon as that is known

The cost may be more than what is left, as it is known only after the work. Then the budget is overdrawn, but never by
more than `tokens`, however much is charged. So it is full again after at most twice its period. Work for which nothing
is charged takes nothing from the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """The size of a budget. `name` is also a label of metrics."""

    name: str
    tokens: float
    period_s: float


REPORTS = BudgetLimit("said", 1, 60.0)
"""Reports that a budget is used up."""


class TokenBudget:
    """One budget. It is full at first."""

    __slots__ = ("_at", "_left", "limit")

    def __init__(self, limit: BudgetLimit) -> None:
        self.limit = limit
        self._left = limit.tokens  # the tokens that were left at the time `_at`
        self._at = -math.inf

    def left(self, now: float) -> float:
        """Return the tokens that are left; less than 0 if the budget is overdrawn."""
        limit = self.limit
        if self._left >= limit.tokens:
            return limit.tokens
        return min(limit.tokens, self._left + (now - self._at) * limit.tokens / limit.period_s)

    def allows(self, now: float) -> bool:
        """Return whether work may begin."""
        return self.left(now) >= 1.0

    def charge(self, now: float, tokens: float = 1.0) -> None:
        """Spend tokens for work that was done."""
        self._left = max(self.left(now) - tokens, -self.limit.tokens)
        self._at = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until work may begin; 0 if it may begin now."""
        missing = 1.0 - self.left(now)
        return max(0.0, missing * self.limit.period_s / self.limit.tokens)


class ReportedBudget(TokenBudget):
    """A budget whose refusals are reported, at most once in `REPORTS.period_s`."""

    __slots__ = ("_reports",)

    def __init__(self, limit: BudgetLimit) -> None:
        super().__init__(limit)
        self._reports = TokenBudget(REPORTS)

    def begin_report(self, now: float) -> bool:
        """Return whether a refusal is to be reported. If so, no further refusal is reported for a minute."""
        if not self._reports.allows(now):
            return False
        self._reports.charge(now)
        return True
