"""What a proof run is evidence of, and what only looks like it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.prove_spark import verdict
from tests.prove_spark.runs import Outcome

WANTED = {("0", number) for number in range(1, 4)}
ALL = Counter(WANTED)


def outcome(found: Counter[tuple[str, int]], *, stopped: int = 0, faults: tuple[str, ...] = ()) -> Outcome:
    """A run of which `stopped` writers ended as they should not."""
    made = Outcome(0, "s3")
    made.count(found, WANTED)
    made.stopped += stopped
    made.faults += [*faults, *["a writer ended with 4: InternalError"] * stopped]
    return made


@pytest.mark.parametrize(
    ("one", "exactly_once", "lost_or_doubled"),
    [
        (outcome(ALL), True, False),
        (outcome(ALL + Counter([("0", 1)])), False, True),
        (outcome(ALL - Counter([("0", 1)])), False, True),
        (outcome(ALL, faults=("acknowledged and not in the sink: 0 [1]",)), False, False),
        (outcome(Counter(), stopped=1), False, False),
        (outcome(ALL, stopped=1), False, False),
        (outcome(ALL + Counter([("0", 1)]), stopped=1), False, True),
    ],
    ids=["right", "doubled", "lost", "other fault", "nothing written", "stopped", "doubled, and stopped"],
)
def test_a_run_in_which_nothing_could_be_written_says_nothing_of_the_sink(
    one: Outcome, exactly_once: bool, lost_or_doubled: bool
) -> None:
    assert (one.exactly_once, one.lost_or_doubled) == (exactly_once, lost_or_doubled)


def test_what_has_to_go_wrong_passes_only_if_records_were_lost_or_doubled() -> None:
    nothing, doubled, right = outcome(Counter(), stopped=3), outcome(ALL + Counter([("0", 1)])), outcome(ALL)
    assert verdict.has_failed([nothing, nothing], has_to_go_wrong=True)
    assert verdict.has_failed([right], has_to_go_wrong=True)
    assert not verdict.has_failed([nothing, doubled], has_to_go_wrong=True)
    assert not verdict.has_failed([right], has_to_go_wrong=False)
    assert verdict.has_failed([right, nothing], has_to_go_wrong=False)


def test_the_summary_tells_the_two_apart() -> None:
    text = verdict.summary("s3-unconditional", [outcome(Counter(), stopped=1), outcome(ALL + Counter([("0", 1)]))], 7.4)
    assert "2 runs in 7 s, 3 records, 1 twice, 3 missing, 2 runs not exactly once, 1 of them lost or doubled" in text
    assert "writers that ended as they should not: 1" in text


def test_a_record_that_is_twice_counts_once_however_often_one_looks() -> None:
    made = Outcome(0, "s3")
    for _ in range(3):
        made.count(ALL + Counter([("0", 1)]), WANTED)
    assert made.duplicates == 1
