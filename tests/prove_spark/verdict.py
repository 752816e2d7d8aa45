"""Whether the runs of a proof prove what they were to prove, and in which words they are reported. Pure.

What has to go wrong passes only if its sink lost or doubled records. A server that refuses every upload makes runs fail
as well, and says nothing about the fence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.prove_spark.runs import Outcome


def has_failed(outcomes: Sequence[Outcome], *, has_to_go_wrong: bool) -> bool:
    if has_to_go_wrong:
        return not any(outcome.lost_or_doubled for outcome in outcomes)
    return not all(outcome.exactly_once for outcome in outcomes)


def summary(layout: str, outcomes: Sequence[Outcome], took_s: float) -> str:
    killed: Counter[str] = sum((outcome.killed for outcome in outcomes), Counter())
    rounds: Counter[str] = sum((outcome.rounds for outcome in outcomes), Counter())
    records = sum(outcome.records for outcome in outcomes)
    twice = sum(outcome.duplicates for outcome in outcomes)
    missing = sum(outcome.missing for outcome in outcomes)
    bad = sum(not outcome.exactly_once for outcome in outcomes)
    proven = sum(outcome.lost_or_doubled for outcome in outcomes)
    return (
        f"{layout}: {len(outcomes)} runs in {took_s:.0f} s, {records} records, {twice} twice, {missing} missing, "
        f"{bad} runs not exactly once, {proven} of them lost or doubled records\n"
        f"  rounds: {counts(rounds)}\n  killed at: {counts(killed)}\n"
        f"  batches of zombies refused: {sum(outcome.fenced for outcome in outcomes)}\n"
        f"  writers that ended as they should not: {sum(outcome.stopped for outcome in outcomes)}"
    )


def counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items())) or "none"
