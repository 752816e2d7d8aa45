"""What the ledger makes of user records: places, gaps, and what falls out of the stream."""

from __future__ import annotations

import pytest

from tests.simulation.checkers import RECOVERED_S, Ledger, Violation

SHARD = "shardId-000000000000"


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def ledger(time: Time) -> Ledger:
    """Aggregates 10 and 20 of three user records each."""
    ledger = Ledger(time, 10.0, lambda key: [])
    ledger.put(SHARD, 10, 3)
    ledger.put(SHARD, 20, 3)
    return ledger


def test_a_child_goes_on_inside_an_aggregate(ledger: Ledger) -> None:
    ledger.begins_at(1, SHARD, "10", 1)
    ledger.delivered("w1", 1, SHARD, [(10, 2), (20, 0), (20, 1)])
    ledger.delivered("w1", 1, SHARD, [(20, 2)])


@pytest.mark.parametrize("first", [(20, 0), (20, 1)])
def test_a_child_must_get_the_rest_of_its_aggregate(ledger: Ledger, first: tuple[int, int]) -> None:
    ledger.begins_at(1, SHARD, "10", 1)
    with pytest.raises(Violation, match=r"without \(10, 2\)"):
        ledger.delivered("w1", 1, SHARD, [first])


@pytest.mark.parametrize("first", [(10, 0), (10, 1)])
def test_a_child_must_not_get_what_was_checkpointed(ledger: Ledger, first: tuple[int, int]) -> None:
    ledger.begins_at(1, SHARD, "10", 1)
    with pytest.raises(Violation, match="checker 2"):
        ledger.delivered("w1", 1, SHARD, [first])


def test_a_gap_in_a_childs_life_is_seen(ledger: Ledger) -> None:
    ledger.begins_at(1, SHARD, "TRIM_HORIZON", 0)
    with pytest.raises(Violation, match=r"without \(10, 1\)"):
        ledger.delivered("w1", 1, SHARD, [(10, 0), (10, 2)])


def test_a_child_at_latest_may_begin_anywhere(ledger: Ledger) -> None:
    ledger.begins_at(1, SHARD, "LATEST", 0)
    ledger.delivered("w1", 1, SHARD, [(20, 0), (20, 1)])


@pytest.mark.parametrize("place", [(10, 3), (15, 0)])
def test_what_does_not_belong_to_a_shard_is_seen(ledger: Ledger, place: tuple[int, int]) -> None:
    with pytest.raises(Violation, match="does not belong"):
        ledger.delivered("w1", 1, SHARD, [place])


def test_a_record_that_fell_out_of_the_stream_is_not_owed(ledger: Ledger, time: Time) -> None:
    ledger.retention_s, time.now_s = 60.0, 30.0
    ledger.put(SHARD, 30)
    time.now_s = 59.0
    assert ledger.owed(ledger.shard(SHARD)) == 7
    time.now_s = 61.0
    assert (ledger.owed(ledger.shard(SHARD)), ledger.trimmed) == (1, 6)
    ledger.begins_at(1, SHARD, "TRIM_HORIZON", 0)
    ledger.delivered("w1", 1, SHARD, [(30, 0)])


def test_a_record_that_is_still_there_must_not_be_skipped(ledger: Ledger, time: Time) -> None:
    ledger.retention_s, time.now_s = 60.0, 59.0
    ledger.begins_at(1, SHARD, "TRIM_HORIZON", 0)
    with pytest.raises(Violation, match=r"without \(10, 0\)"):
        ledger.delivered("w1", 1, SHARD, [(20, 0)])


def test_a_record_that_could_be_read_in_peace_is_owed_for_ever(ledger: Ledger, time: Time) -> None:
    ledger.retention_s, ledger.calm_at = RECOVERED_S + 20.0, 10.0
    time.now_s = ledger.retention_s + 1.0
    with pytest.raises(Violation, match="without faults"):
        ledger.owed(ledger.shard(SHARD))
