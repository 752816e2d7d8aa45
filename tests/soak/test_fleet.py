"""What judges the soak of a fleet finds what it has to; the soak itself is `make soak-fleet`."""

from __future__ import annotations

import pytest

from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.leases.lease import Lease
from tests.integration.history import Delivered, Life, Put, children_after_parents
from tests.soak.fleet import Ownerless, Progress, first_deliveries, longest_wait_s, moves, still_open
from tests.soak.shared import SoakError
from tests.support.wiretap import RowWrite

PUTS = [Put("s", 10, "a"), Put("s", 20, "b"), Put("t", 30, "c")]
ALL = {(put.shard, put.sequence) for put in PUTS}


def life(shard: str, *deliveries: tuple[int, int]) -> Life:
    return Life(1, "w1", shard, 0, TRIM_HORIZON, [Delivered(at, number, "") for number, at in deliveries])


def lease(key: str, checkpoint: Position, owner: str | None = "w1") -> Lease:
    return Lease(key=key, checkpoint=checkpoint, owner=owner)


def write(counter: int, owner: str | None) -> RowWrite:
    row = {"leaseKey": {"S": "s"}, "leaseCounter": {"N": str(counter)}}
    return RowWrite("w1", 0, 0, "", row if owner is None else {**row, "leaseOwner": {"S": owner}})


def test_a_minute_without_fewer_open_records_is_a_livelock() -> None:
    progress = Progress(60.0)
    for at_s, count in ((0.0, 9), (50.0, 8), (80.0, 9), (110.0, 8)):
        progress.note(at_s, count)
    with pytest.raises(SoakError, match="livelock: 8 records"):
        progress.note(111.0, 8)


def test_a_record_is_open_until_it_is_delivered_and_checkpointed() -> None:
    caught_up = {"s": lease("s", SHARD_END), "t": lease("t", Position("30"))}
    assert still_open(PUTS, ALL, caught_up) == 0
    assert still_open(PUTS, ALL - {("s", 10)}, caught_up) == 1
    assert still_open(PUTS, ALL, {**caught_up, "s": lease("s", Position("10"))}) == 1
    assert still_open(PUTS, ALL, {**caught_up, "s": lease("s", TRIM_HORIZON)}) == 2
    assert still_open(PUTS, ALL, {"t": caught_up["t"]}) == 0, "a row that was cleaned up"


def test_the_time_without_a_living_owner_ends_with_one() -> None:
    ownerless = Ownerless()
    leases = {"s": lease("s", TRIM_HORIZON), "done": lease("done", SHARD_END, None)}
    for at_s, owner in ((0.0, "w1"), (10.0, "w2"), (13.0, "w2"), (14.0, "w1"), (20.0, "w2"), (22.0, "w2")):
        ownerless.look(at_s, leases, {owner})
    assert ownerless.longest_s == 3.0


def test_a_parent_may_be_repeated_by_who_was_frozen_and_not_come_late() -> None:
    repeated = [life("parent", (10, 1)), life("child", (30, 5)), life("parent", (10, 9))]
    children_after_parents(first_deliveries(repeated), {"child": ["parent"]})
    with pytest.raises(AssertionError, match="before the end of its parent"):
        children_after_parents(first_deliveries([*repeated, life("parent", (20, 9))]), {"child": ["parent"]})


def test_moves_and_waits_are_counted() -> None:
    assert moves([write(3, "w2"), write(1, "w1"), write(2, None), write(4, "w2"), write(5, "w1")]) == 2
    second = 1_000_000_000
    lives = [life("s", (10, 4 * second), (20, 5 * second)), life("s", (20, 9 * second))]
    assert longest_wait_s({("s", 10): second, ("s", 20): 3 * second}, lives) == 3.0
