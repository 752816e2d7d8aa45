"""What the ledger makes of user records (places, gaps, what falls out of the stream), and of late answers."""

from __future__ import annotations

import contextlib

import pytest

from tests.simulation.beliefs import Beliefs, counts_from
from tests.simulation.checkers import RECOVERED_S, Ledger, Violation
from tests.twins.dynamo import Applied

SHARD = "shardId-000000000000"
KEYS = ("key",) * 3


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
    ledger.put(SHARD, 10, KEYS)
    ledger.put(SHARD, 20, KEYS)
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


@pytest.mark.parametrize(("checkpoint", "left"), [("LATEST", 3), ("TRIM_HORIZON", 9)])
def test_what_lay_before_the_tip_is_not_owed_by_who_began_there_and_what_came_later_is(
    ledger: Ledger, time: Time, checkpoint: str, left: int
) -> None:
    ledger.starts_at_latest = True
    created = _written(0, 0.0)
    created.after["checkpoint"] = {"S": checkpoint}
    ledger.applied(created, 0.0)
    time.now_s = 5.0
    ledger.read_from_tip(SHARD)
    time.now_s = 6.0
    ledger.put(SHARD, 30, KEYS)
    assert ledger.owed(ledger.shard(SHARD)) == left


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


def _written(counter: int, at: float, owner: str = "w1") -> Applied:
    row = {
        "leaseKey": {"S": SHARD},
        "leaseOwner": {"S": owner},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
        "leaseCounter": {"N": str(counter)},
    }
    before = {**row, "leaseCounter": {"N": str(counter - 1)}} if counter else {}
    return Applied(at, "w1#1", "UpdateItem", "t", before, row)


def test_a_slow_write_that_was_overtaken_does_not_make_a_belief_older(ledger: Ledger, time: Time) -> None:
    ledger.ours.add("w1#1")
    ledger.applied(_written(0, 0.0), 0.0)
    ledger.applied(_written(1, 6.0), 6.0)
    ledger.applied(_written(2, 7.0), 3.0)
    time.now_s = 7.0
    for sent_at in (0.0, 6.0, 3.0):
        ledger.write_answered("w1#1", SHARD, sent_at, [])
    time.now_s = 14.0
    ledger.check_beliefs([("w1#1", [SHARD])])
    time.now_s = 17.0
    with pytest.raises(Violation, match="checker 4"):
        ledger.check_beliefs([("w1#1", [SHARD])])


@pytest.mark.parametrize(
    ("after_s", "is_ours", "is_late"),
    [(10.5, True, False), (12.0, True, True), (12.0, False, False), (19.5, False, True)],
)
def test_who_lost_a_lease_stops_in_time_and_java_a_late_answer_later(
    ledger: Ledger, time: Time, after_s: float, is_ours: bool, is_late: bool
) -> None:
    ledger.applied(_written(0, 0.0), 0.0)
    taken = _written(1, 0.0, "w2")
    ledger.applied(Applied(0.0, "w2#1", "UpdateItem", "t", _written(0, 0.0).after, taken.after), 0.0)
    time.now_s = after_s
    with pytest.raises(Violation, match="checker 5") if is_late else contextlib.nullcontext():
        ledger.batch_begins("w1", SHARD, is_ours=is_ours)


@pytest.mark.parametrize(
    ("retention_s", "had_row", "is_early"), [(0.0, False, True), (60.0, True, True), (60.0, False, False)]
)
def test_a_child_waits_for_its_parent_unless_that_has_left_the_stream_unseen(
    ledger: Ledger, retention_s: float, had_row: bool, is_early: bool
) -> None:
    ledger.retention_s = retention_s
    ledger.shard("parent").had_row, ledger.shard("parent").closed = had_row, True
    ledger.shard(SHARD).parents = ("parent",)
    ledger.begins_at(1, SHARD, "TRIM_HORIZON", 0)
    with pytest.raises(Violation, match="checker 2") if is_early else contextlib.nullcontext():
        ledger.delivered("w1", 1, SHARD, [(10, 0)])


@pytest.mark.parametrize(
    ("answered_at", "waiting", "since"),
    [
        pytest.param(7.9, [3.0, 6.0], 0.0, id="in time: from its sending"),
        pytest.param(8.1, [], 0.0, id="late, and nothing was sent after it"),
        pytest.param(8.1, [3.0, 6.0], 6.0, id="late: from the last of those that followed it"),
        pytest.param(8.1, [3.0, 7.5], 3.0, id="a pause of more than 0.4 ends the chain"),
        pytest.param(40.0, [38.0], 0.0, id="what a stopped process sends when it goes on is no chain"),
    ],
)
def test_an_answer_counts_as_the_rule_says(answered_at: float, waiting: list[float], since: float) -> None:
    assert counts_from(0.0, answered_at, waiting, 10.0) == since


@pytest.mark.parametrize(("after_s", "is_late"), [(16.5, False), (18.0, True)])
def test_a_late_answer_lets_a_worker_that_lost_its_lease_believe_as_long_as_the_rule_says(
    ledger: Ledger, time: Time, after_s: float, is_late: bool
) -> None:
    ledger.applied(_written(0, 0.0), 0.0)
    ledger.applied(_written(1, 0.0), 1.0)
    taken = Applied(2.0, "w2#1", "UpdateItem", "t", _written(1, 0.0).after, _written(2, 2.0, "w2").after)
    ledger.applied(taken, 2.0)
    time.now_s = 10.0
    ledger.write_answered("w1#1", SHARD, 1.0, [3.0, 6.5])
    time.now_s = after_s
    with pytest.raises(Violation, match="checker 4") if is_late else contextlib.nullcontext():
        ledger.check_beliefs([("w1#1", [SHARD])])
    with pytest.raises(Violation, match="checker 5") if is_late else contextlib.nullcontext():
        ledger.batch_begins("w1", SHARD)


def test_a_repeated_take_that_its_first_attempt_refuses_counts_from_that(ledger: Ledger, time: Time) -> None:
    ledger.applied(_written(0, 0.0, ""), 0.0)
    ledger.applied(Applied(1.0, "w1#1", "UpdateItem", "t", _written(0, 0.0, "w2").after, _written(1, 1.0).after), 1.0)
    ledger.beliefs.refused("w1#1", SHARD)
    assert ledger.believed_from("w1#1", SHARD) == 1.0


def test_a_take_of_a_row_that_was_given_by_hand_counts_although_its_answer_is_lost() -> None:
    beliefs = Beliefs(10.0)
    beliefs.applied("w#1", "k", 100.0, is_take=False)
    beliefs.refused("w#1", "k")
    assert beliefs.since("w#1", "k") == 100.0
    beliefs.applied("w#1", "k", 105.0, is_take=False)
    beliefs.refused("w#1", "k")
    assert beliefs.since("w#1", "k") == 100.0, "a renewal without an answer counts for nothing"
