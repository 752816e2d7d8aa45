"""`RecordBudgets`: what the records of one shard may make this worker do, beyond their delivery.

Rules: retrieval#budgets-for-what-records-ask-for. Whoever may put records into a stream decides what is in them. All
that a record can make us call, compute, write or log besides its own delivery is a `RecordBudget` of its shard here, so
that a producer can use up only what belongs to his shard. A budget that is used up never drops a record: what it was
for is left out or comes later (`CONSEQUENCES`). That is logged once a minute, counted, an event, and a fault of the
shard.

Budgets last as long as the consumer of the shard. They are constants: no ordinary stream comes near them.
"""

from __future__ import annotations

import logging

from mld.core.clock import Clock
from mld.core.log_fields import about
from mld.core.token_budget import BudgetLimit, TokenBudget
from mld.metrics.events import EventKind
from mld.metrics.shard import ShardMetrics

log = logging.getLogger(__name__)

MINUTE_S = 60.0
LOOKUPS = BudgetLimit("schema_lookups", 200, MINUTE_S)
"""Lookups of schema versions. As many versions as a worker keeps can be looked up within a minute."""
LOOKUP_WITHOUT_RESULT = 10.0
"""What a lookup costs that does not find its version. So 20 ids that do not exist are looked up a minute; a producer
who makes up ids can make up any number of them, and all applications of an AWS account share the registry's quota.
"""
DECODING = BudgetLimit("decoding", 3, MINUTE_S)
"""Seconds of CPU of the decoder, beyond what records of their size take. That is a twentieth of the decoder, which all
shards share. A record may take 0.2 s, so that ten of them are tried at once; each takes a new process besides."""
WARNINGS = BudgetLimit("warnings", 10, MINUTE_S)
"""Lines of the log about single records. Ten show what is wrong; the log is for the other shards, too."""
LETTERS = BudgetLimit("dead_letters", 60, MINUTE_S)
"""Dead letters. With the usual pause before a restart, a shard writes at most one every two seconds."""
SAID = BudgetLimit("said", 1, MINUTE_S)
SPENT_SHOWN_S = 600.0
"""How long a budget that was used up is shown as a fault: longer than it takes somebody to look."""

CONSEQUENCES = {
    LOOKUPS.name: "schema versions are not looked up; their records are delivered as they came, or wait",
    DECODING.name: "framed records are not decoded; they are delivered as they came, or wait",
    WARNINGS.name: "single records are logged at DEBUG only",
    LETTERS.name: "dead letters are written later, and the shard waits for them",
}


class RecordBudget:
    """One budget of a shard. It reports when it is used up."""

    def __init__(self, limit: BudgetLimit, shard: str, clock: Clock, metrics: ShardMetrics) -> None:
        self._budget = TokenBudget(limit)
        self._said = TokenBudget(SAID)
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
        """Count a refusal, and say once a minute what follows from it."""
        name = self._budget.limit.name
        self._metrics.budget_refusals.add(name)
        if not self._said.allows(now):
            return
        self._said.charge(now)
        words = f"the budget of {name} that records of a shard have is used up: {CONSEQUENCES[name]}"
        self._metrics.spent(name, words, self._clock.wall(), SPENT_SHOWN_S)
        self._metrics.events.note(EventKind.BUDGET, words, shard=self._shard)
        log.warning("%s", words, extra=about("budget_spent", self._shard, budget=name))


class RecordBudgets:
    """The budgets of one shard."""

    def __init__(self, shard: str, clock: Clock, metrics: ShardMetrics) -> None:
        self.lookups, self.decoding, self.warnings, self.letters = (
            RecordBudget(limit, shard, clock, metrics) for limit in (LOOKUPS, DECODING, WARNINGS, LETTERS)
        )
