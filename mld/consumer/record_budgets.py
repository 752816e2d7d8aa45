"""`RecordBudgets`: limits the work that the records of one shard can cause in this worker, besides their delivery.

Rules: retrieval#budgets-for-what-records-ask-for. Whoever may put records into a stream decides what is in them. So
each shard has a `RecordBudget` for every kind of work that its records can cause besides their delivery: calls,
computing, writing and logging. A producer can use up only the budgets of the shards that it writes to. No record is
dropped because a budget is used up; only the work is left out, or comes later (`CONSEQUENCES`). Refused work is
counted. Once a minute it is also logged, noted as an event, and shown as a fault of the shard.

Budgets last as long as the consumer of the shard. They are constants: no ordinary stream comes near them.
"""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.log_fields import about
from mld.core.token_budget import BudgetLimit, ReportedBudget
from mld.metrics.events import EventKind
from mld.metrics.shard import ShardMetrics

log = logging.getLogger(__name__)

MINUTE_S = 60.0
LOOKUPS = BudgetLimit("schema_lookups", 200, MINUTE_S)
"""Lookups of schema versions. As many versions as a worker keeps can be looked up within a minute."""
LOOKUP_WITHOUT_RESULT = 10.0
"""How many tokens a lookup costs if it does not find its version. So at most 20 ids that do not exist are looked up in
a minute. A producer can make up any number of ids, and all applications of an AWS account share the registry's quota.
"""
DECODING = BudgetLimit("decoding", 3, MINUTE_S)
"""Seconds of CPU of the decoder, beyond what records of that size usually take: a twentieth of the decoder's time,
because all shards share the decoder. A record may take 0.2 s, so ten of them can be tried one after the other; each
also costs a new process."""
WARNINGS = BudgetLimit("warnings", 10, MINUTE_S)
"""Lines of the log about single records. Ten show what is wrong; the log is for the other shards, too."""
LETTERS = BudgetLimit("dead_letters", 60, MINUTE_S)
"""Dead letters. With the usual pause before a restart, a shard writes at most one every two seconds."""
SPENT_SHOWN_S = 600.0
"""How long a budget that was used up is shown as a fault: longer than it takes somebody to look."""

CONSEQUENCES = {
    LOOKUPS.name: "schema versions are not looked up; their records are delivered as they came, or wait",
    DECODING.name: "framed records are not decoded; they are delivered as they came, or wait",
    WARNINGS.name: "single records are logged at DEBUG only",
    LETTERS.name: "dead letters are written later, and the shard waits for them",
}
"""What happens to records whose shard has used up a budget, for each budget by name."""


class RecordBudget:
    """One budget of a shard. It reports when it is used up."""

    def __init__(self, limit: BudgetLimit, shard: str, clock: Clock, metrics: ShardMetrics) -> None:
        self._budget = ReportedBudget(limit)
        self._shard = shard
        self._clock = clock
        self._metrics = metrics

    def allows(self) -> bool:
        """Return whether the work may begin. If not, it is counted as refused."""
        now = self._clock.monotonic()
        if self._budget.allows(now):
            return True
        self._report(now)
        return False

    def charge(self, tokens: float = 1.0) -> None:
        """Spend tokens for work that was done."""
        self._budget.charge(self._clock.monotonic(), tokens)

    def wait_s(self) -> float:
        """Return the seconds until the work may begin; 0 if it may begin now. A wait is counted as refused."""
        now = self._clock.monotonic()
        if (seconds := self._budget.wait_s(now)) > 0.0:
            self._report(now)
        return seconds

    def _report(self, now: float) -> None:
        """Count a refusal. Once a minute, also log it, and note it as an event and a fault of the shard."""
        name = self._budget.limit.name
        self._metrics.budget_refusals.add(name)
        if not self._budget.begin_report(now):
            return
        message = f"the budget of {name} that records of a shard have is used up: {CONSEQUENCES[name]}"
        self._metrics.spent(name, message, self._clock.wall(), SPENT_SHOWN_S)
        self._metrics.events.note(EventKind.BUDGET, message, shard=self._shard)
        log.warning("%s", message, extra=about("budget_spent", self._shard, budget=name))


class RecordBudgets:
    """The budgets of one shard."""

    def __init__(self, shard: str, clock: Clock, metrics: ShardMetrics) -> None:
        self.lookups, self.decoding, self.warnings, self.letters = (
            RecordBudget(limit, shard, clock, metrics) for limit in (LOOKUPS, DECODING, WARNINGS, LETTERS)
        )
