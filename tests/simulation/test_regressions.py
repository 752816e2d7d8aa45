"""Runs with a name: each has a plan of its own, written out, so that it stays when plans are drawn anew.

A run that once broke a promise belongs here; so does one that a certain mistake breaks, which is named beside it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.checkers import Ledger
from tests.simulation.run import run_plan, run_seed
from tests.simulation.variants.catalog import BY_NAME
from tests.simulation.variants.patching import patched
from tests.simulation.world.plan import Action, Kind, Plan, Rates, WorkerSpec

EVERY_20_S = tuple(20.0 * n for n in range(1, 10))


def calm(seed: int) -> Plan:
    """Two workers and two shards without any fault."""
    return Plan(
        seed=seed,
        shards=2,
        workers=(WorkerSpec("mld"), WorkerSpec("mld")),
        rates=Rates(),
        actions=(),
        trouble_s=200.0,
        quiet_s=150.0,
        idle_s=1.5,
    )


REGRESSIONS: dict[str, Plan] = {
    # Children checkpoint somewhere inside aggregates and die; workers are killed and come back. Nothing is skipped,
    # nothing that was checkpointed is delivered again.
    "restart in the middle of an aggregate": replace(
        calm(1),
        aggregated=1.0,
        rates=Rates(child_dies=0.2, child_silent=0.5),
        actions=tuple(Action(at_s, Kind.CRASH, n, 1.0, "same") for n, at_s in enumerate(EVERY_20_S)),
    ),
    # Iterators are lost between the start inside an aggregate and the first record read.
    "iterator lost before the rest of an aggregate is read": replace(
        calm(8),
        aggregated=1.0,
        rates=Rates(child_dies=0.2, child_silent=0.5, iterator_expired=0.3, kinesis_error=0.3),
    ),
    # The producers' map of the shards is old: aggregates straddle the hash ranges of the children.
    "aggregates across a split": replace(
        calm(3),
        aggregated=1.0,
        records_per_s=3.0,
        actions=tuple(
            Action(at_s, Kind.MERGE if n % 3 == 2 else Kind.SPLIT, n, 0.5) for n, at_s in enumerate(EVERY_20_S)
        ),
    ),
    # Nobody reads for longer than the stream keeps its records; then reading goes on at what is left.
    "a backlog falls out of the stream": replace(
        calm(4),
        aggregated=0.5,
        retention_s=40.0,
        actions=(
            Action(40.0, Kind.PARTITION, 0, 80.0, "kinesis"),
            Action(40.0, Kind.PARTITION, 1, 80.0, "kinesis"),
            Action(130.0, Kind.SPLIT, 0, 0.5),
        ),
    ),
    # Clocks are set ahead while quiet shards are read from LATEST; then iterators expire, and reading goes on by time.
    "clocks are set ahead at the tip": replace(
        calm(5),
        shards=24,
        initial="LATEST",
        records_per_s=0.3,
        rates=Rates(iterator_expired=0.05),
        actions=(Action(3.0, Kind.WALL_JUMP, 0, 1_800.0), Action(3.0, Kind.WALL_JUMP, 1, 1_800.0)),
    ),
    # A paused row is damaged, and mended with its pause: the operator ends that, too.
    "a paused row is damaged": replace(
        calm(6),
        shards=1,
        actions=(Action(30.0, Kind.OPERATE, text="pause"), Action(60.0, Kind.CORRUPT_ROW)),
    ),
}


MISTAKES = {
    "restart in the middle of an aggregate": ("restart_after_aggregate", "aggregate_from_its_start"),
    "iterator lost before the rest of an aggregate is read": ("first_iterator_replaced_after_checkpoint",),
    "aggregates across a split": ("misrouted_aggregate_delivered",),
}
"""Variants (`variants.catalog`) that break the run."""


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_named_run_keeps_every_promise(name: str) -> None:
    assert run_plan(REGRESSIONS[name]).violation == ""


@pytest.mark.parametrize("name, variant", [(name, variant) for name, found in MISTAKES.items() for variant in found])
def test_a_mistake_shows_in_its_run(name: str, variant: str) -> None:
    with patched(BY_NAME[variant].patches):
        assert run_plan(REGRESSIONS[name]).violation != ""


def test_the_backlog_does_fall_out() -> None:
    assert run_plan(REGRESSIONS["a backlog falls out of the stream"]).trimmed > 100


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param("multi-stream", 300081, id="a handoff in a former stream that is kept stays pending"),
        pytest.param("2x", 400071, id="a damaged row is mended by hand, and its counter moves"),
        pytest.param("odd", 9300013, id="a checkpoint takes a row back from an odd one"),
        pytest.param("multi-stream", 9300023, id="a try to resume is answered after the lease was given away"),
        pytest.param("3x", 910011, id="a lease is taken away and taken back between two renewals"),
    ],
)
def test_a_seed_that_once_failed_keeps_every_promise(mode: str, seed: int) -> None:
    assert run_seed(seed, mode=mode).violation == ""


def test_a_checker_that_breaks_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("of the checker")

    monkeypatch.setattr(Ledger, "check_beliefs", broken)
    assert "of the checker" in run_plan(calm(1)).violation
