"""What the ledger makes of several children that share the records of one shard by partition key."""

from __future__ import annotations

from zlib import crc32

import pytest

from tests.simulation.checkers import Ledger, Violation
from tests.simulation.shared_shards import FOLLOWS_S, SETTLED_S, Life
from tests.twins.dynamo import Applied

SHARD = "shardId-000000000000"
PROCESS = "w1#1"
FIRST, SECOND = 101, 102
"""The two children, as the ledger numbers them."""
A = next(key for key in map(str, range(9)) if crc32(key.encode()) % 2 == 0)
B = next(key for key in map(str, range(9)) if crc32(key.encode()) % 2 == 1)


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def ledger(time: Time) -> Ledger:
    """Records 10 and 40 of the first child, 20 of the second one, and the user record 30/1, which has no key."""
    ledger = Ledger(time, 10.0, lambda key: [])
    ledger.ours.add(PROCESS)
    ledger.put(SHARD, 10, [A])
    ledger.put(SHARD, 20, [B])
    ledger.put(SHARD, 30, [B, ""])
    ledger.put(SHARD, 40, [A])
    _start(ledger)
    return ledger


def _start(ledger: Ledger, first: int = FIRST, at: str = "TRIM_HORIZON") -> Life:
    life = ledger.shared.starts(PROCESS, SHARD, 2)
    for number in (0, 1):
        ledger.shared.started(first + number, life, number)
        ledger.begins_at(first + number, SHARD, at, 0)
    return life


def _deliver(ledger: Ledger, child: int, *places: tuple[int, int]) -> None:
    ledger.delivered("w1", child, SHARD, list(places))


def _ask(ledger: Ledger, child: int, sequence: str, sub: int = 0) -> None:
    ledger.asked(PROCESS, SHARD, sequence, sub, child)


def _store(ledger: Ledger, sequence: str, sub: int = 0) -> None:
    row = {"leaseKey": {"S": SHARD}, "leaseOwner": {"S": "w1"}, "leaseCounter": {"N": "1"}}
    before = {**row, "checkpoint": {"S": "TRIM_HORIZON"}, "checkpointSubSequenceNumber": {"N": "0"}}
    after = {**row, "checkpoint": {"S": sequence}, "checkpointSubSequenceNumber": {"N": str(sub)}}
    ledger.applied(Applied(0.0, PROCESS, "UpdateItem", "t", before, after), 0.0)


def test_children_get_the_records_of_their_keys_and_any_of_those_without(ledger: Ledger) -> None:
    _deliver(ledger, SECOND, (20, 0), (30, 0))
    _deliver(ledger, FIRST, (10, 0), (30, 1), (40, 0))


def test_a_record_of_another_childs_key_is_seen(ledger: Ledger) -> None:
    with pytest.raises(Violation, match=r"checker 17.*\(20, 0\).*not child 1"):
        _deliver(ledger, FIRST, (10, 0), (20, 0))


def test_a_skipped_record_of_a_childs_key_is_seen(ledger: Ledger) -> None:
    with pytest.raises(Violation, match=r"without \(20, 0\)"):
        _deliver(ledger, SECOND, (30, 0))


def test_a_record_without_a_key_goes_to_one_child(ledger: Ledger) -> None:
    _deliver(ledger, FIRST, (10, 0), (30, 1))
    with pytest.raises(Violation, match="children 0 and 1"):
        _deliver(ledger, SECOND, (20, 0), (30, 0), (30, 1))


def test_records_that_fell_out_of_the_stream_are_not_skipped_where_another_childs_are_left(
    ledger: Ledger, time: Time
) -> None:
    ledger.retention_s, time.now_s = 60.0, 59.0
    ledger.put(SHARD, 50, [B])
    ledger.put(SHARD, 60, [A])
    time.now_s = 61.0
    _deliver(ledger, FIRST, (60, 0))


def test_the_row_passes_a_record_that_fell_out_of_the_stream_unread(ledger: Ledger, time: Time) -> None:
    ledger.retention_s, time.now_s = 60.0, 59.0
    ledger.put(SHARD, 50, [A])
    ledger.put(SHARD, 60, [B])
    time.now_s = 61.0
    _deliver(ledger, FIRST, (50, 0))
    _deliver(ledger, SECOND, (60, 0))
    _ask(ledger, SECOND, "60")
    with pytest.raises(Violation, match=r"\(50, 0\) is unfinished"):
        _store(ledger, "60")
    _ask(ledger, FIRST, "50")
    _store(ledger, "60")


def test_a_child_of_an_earlier_start_is_seen(ledger: Ledger) -> None:
    _deliver(ledger, FIRST, (10, 0))
    _start(ledger, 201)
    with pytest.raises(Violation, match="after later ones began"):
        _deliver(ledger, SECOND, (20, 0))


@pytest.mark.parametrize(("row", "passes"), [("10", False), ("20", True), ("40", True)])
def test_the_row_does_not_pass_an_unfinished_record_of_any_child(ledger: Ledger, row: str, passes: bool) -> None:
    _deliver(ledger, FIRST, (10, 0), (30, 1), (40, 0))
    _deliver(ledger, SECOND, (20, 0), (30, 0))
    _ask(ledger, FIRST, "40")
    if not passes:
        _store(ledger, row)
        return
    with pytest.raises(Violation, match=r"checker 17.*\(20, 0\) is unfinished"):
        _store(ledger, row)


def test_a_checkpoint_of_an_earlier_life_finishes_nothing(ledger: Ledger) -> None:
    _deliver(ledger, FIRST, (10, 0))
    _deliver(ledger, SECOND, (20, 0))
    _ask(ledger, FIRST, "10")
    _start(ledger, 201)
    _deliver(ledger, 202, (20, 0))
    _ask(ledger, 202, "20")
    with pytest.raises(Violation, match="is unfinished"):
        _store(ledger, "20")


def test_a_record_without_a_key_is_finished_by_the_child_that_got_it(ledger: Ledger) -> None:
    _deliver(ledger, FIRST, (10, 0))
    _deliver(ledger, SECOND, (20, 0), (30, 0), (30, 1))
    _ask(ledger, FIRST, "10")
    _ask(ledger, SECOND, "30", 1)
    _store(ledger, "30", 1)


@pytest.mark.parametrize("asking", [(FIRST,), (FIRST, SECOND)])
def test_the_end_is_stored_when_all_children_have_asked_for_it(ledger: Ledger, asking: tuple[int, ...]) -> None:
    _deliver(ledger, FIRST, (10, 0), (30, 1), (40, 0))
    _deliver(ledger, SECOND, (20, 0), (30, 0))
    ledger.shard(SHARD).closed = True
    for child in asking:
        _ask(ledger, child, "SHARD_END")
    if len(asking) == 2:
        _store(ledger, "SHARD_END")
        return
    with pytest.raises(Violation, match="child 1 of 2 has not asked for the end"):
        _store(ledger, "SHARD_END")


@pytest.mark.parametrize(("row", "ended", "is_behind"), [("10", (), True), ("20", (), False), ("10", (FIRST,), False)])
def test_in_the_calm_part_the_row_follows_living_children(
    ledger: Ledger, time: Time, row: str, ended: tuple[int, ...], is_behind: bool
) -> None:
    _deliver(ledger, FIRST, (10, 0))
    _deliver(ledger, SECOND, (20, 0))
    _ask(ledger, FIRST, "10")
    _ask(ledger, SECOND, "20")
    _store(ledger, row)
    for child in ended:
        ledger.shared.ended(child)
    ledger.calm_at, time.now_s = 0.0, SETTLED_S + 1.0
    ledger.shared.check_following(PROCESS, [SHARD])
    time.now_s += FOLLOWS_S + 1.0
    if not is_behind:
        ledger.shared.check_following(PROCESS, [SHARD])
        return
    ledger.shared.check_following(PROCESS, [])  # who does not hold the lease cannot store
    ledger.shared.check_following(PROCESS, [SHARD])
    time.now_s += FOLLOWS_S + 1.0
    with pytest.raises(Violation, match="is behind the children"):
        ledger.shared.check_following(PROCESS, [SHARD])
