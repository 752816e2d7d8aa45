"""Every checker of `history` bites: a good history passes, and each kind of bad history is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mld.core.positions import TRIM_HORIZON, Position
from tests.integration.history import (
    Checkpoint,
    Delivered,
    Life,
    Put,
    check_all,
    checkpoints_within_deliveries,
    children_after_parents,
    every_record_delivered,
    in_order_without_gaps,
    one_writer_at_a_time,
    rows_within_deliveries,
)
from tests.support.wiretap import RowWrite

PUTS = [Put("s", 10, "a"), Put("s", 20, "b"), Put("s", 30, "c")]
CHECKPOINT = "SET #leaseCounter = :next, #checkpoint = :checkpoint"
RENEW = "SET #leaseCounter = :next"
HAND_OFF = "SET #leaseOwner = :nextOwner, #checkpointOwner = :owner"
TAKE = "SET #leaseCounter = :next, #leaseOwner = :owner"


def life(*sequences: int, shard: str = "s", position: Position = TRIM_HORIZON, at: int = 1) -> Life:
    data = {put.sequence: put.data for put in PUTS}
    delivered = [Delivered(at + i, number, data.get(number, "?")) for i, number in enumerate(sequences)]
    return Life(1, "w1", shard, at, position, delivered)


def write(counter: int, checkpoint: str, *, at: int = 100, **changes: Any) -> RowWrite:
    values = {"writer": "w1", "owner": "w1", "expression": CHECKPOINT, **changes}
    row = {
        "leaseKey": {"S": "s"},
        "leaseCounter": {"N": str(counter)},
        "checkpoint": {"S": checkpoint},
        "leaseOwner": {"S": values["owner"]},
    }
    if "leaving" in values:
        row["checkpointOwner"] = {"S": values["leaving"]}
    return RowWrite(values["writer"], at - 1, at, values["expression"], row)


def test_a_good_history_passes() -> None:
    first = life(10, 20)
    first.checkpoints.append(Checkpoint(5, 6, "20", None))
    second = life(30, position=Position("20"), at=50)
    heir = {"writer": "w2", "owner": "w2"}
    writes = [write(1, "TRIM_HORIZON", expression=TAKE), write(2, "20"), write(3, "20", expression=TAKE, **heir)]
    check_all(PUTS, [first, second], [*writes, write(4, "30", **heir)])


def test_a_missing_record_is_found() -> None:
    with pytest.raises(AssertionError, match="1 of 3 records"):
        every_record_delivered(PUTS, [life(10, 20)])


def test_changed_data_is_found() -> None:
    with pytest.raises(AssertionError, match="changed on the way"):
        every_record_delivered([*PUTS[:2], replace(PUTS[2], data="x")], [life(10, 20, 30)])


@pytest.mark.parametrize(
    ("sequences", "wrong"), [((20, 10), "got 10 after 20"), ((10, 10), "got 10 after 10"), ((10, 30), "got 30 not 20")]
)
def test_disorder_and_repetition_and_gaps_within_a_child_are_found(sequences: tuple[int, ...], wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        in_order_without_gaps(PUTS, [life(*sequences)])


def test_a_start_that_skips_is_found() -> None:
    with pytest.raises(AssertionError, match="got 30 not 20"):
        in_order_without_gaps(PUTS, [life(30, position=Position("10"))])


def test_records_nobody_put_are_found() -> None:
    with pytest.raises(AssertionError, match="nobody put"):
        in_order_without_gaps(PUTS, [life(10, 20, 30, 40)])


def test_a_child_shard_before_the_end_of_its_parent_is_found() -> None:
    with pytest.raises(AssertionError, match="before the end of its parent"):
        children_after_parents([life(10, 20, at=1), life(30, shard="child", at=2)], {"child": {"s"}})


def test_a_granted_checkpoint_beyond_the_deliveries_is_found() -> None:
    early = life(10, 20, at=5)
    early.checkpoints.append(Checkpoint(1, 5, "20", None))
    with pytest.raises(AssertionError, match="checkpointed 20/0 beyond 10/0"):
        checkpoints_within_deliveries([early])


def test_a_refused_checkpoint_may_ask_for_anything() -> None:
    refused = life(10)
    refused.checkpoints.append(Checkpoint(1, 5, "20", "IllegalArgumentException"))
    checkpoints_within_deliveries([refused])


def test_a_row_ahead_of_the_deliveries_is_found() -> None:
    with pytest.raises(AssertionError, match="past the undelivered"):
        rows_within_deliveries(PUTS, [life(10)], [write(2, "20")])


def test_a_row_written_before_the_delivery_is_found() -> None:
    with pytest.raises(AssertionError, match="past the undelivered"):
        rows_within_deliveries(PUTS, [life(10, 20, at=200)], [write(2, "20", at=100)])


def test_a_shard_end_before_the_last_record_is_found() -> None:
    with pytest.raises(AssertionError, match="SHARD_END past the undelivered"):
        rows_within_deliveries(PUTS, [life(10, 20)], [write(2, "SHARD_END")])


def test_two_writers_of_one_version_are_found() -> None:
    with pytest.raises(AssertionError, match="the same version"):
        one_writer_at_a_time([write(2, "10"), write(2, "20", writer="w2", owner="w2")])


def test_a_handoff_begins_at_a_version_that_stays() -> None:
    pending = {"owner": "w2", "leaving": "w1"}
    begun = write(2, "20", writer="leader", expression=HAND_OFF, **pending)
    done = write(4, "30", expression=TAKE, owner="w2")
    one_writer_at_a_time(
        [write(2, "20"), begun, write(3, "30", **pending), done, write(5, "30", writer="w2", owner="w2")]
    )


def test_a_worker_that_leaves_in_the_middle_of_a_handoff_completes_it() -> None:
    one_writer_at_a_time([write(3, "20", owner="w2", expression="REMOVE #checkpointOwner ADD #leaseCounter :one")])


def test_two_handoffs_begun_at_one_version_are_found() -> None:
    begun = [write(2, "20", expression=HAND_OFF, owner=owner, leaving="w1") for owner in ("w2", "w3")]
    with pytest.raises(AssertionError, match="the same version"):
        one_writer_at_a_time(begun)


@pytest.mark.parametrize("expression", [CHECKPOINT, RENEW])
def test_the_next_owner_who_does_not_wait_is_found(expression: str) -> None:
    early = write(3, "20", writer="w2", owner="w2", leaving="w1", expression=expression)
    with pytest.raises(AssertionError, match="while w1 owned it"):
        one_writer_at_a_time([early])


@pytest.mark.parametrize("expression", [CHECKPOINT, RENEW])
def test_a_writer_who_is_not_the_owner_is_found(expression: str) -> None:
    with pytest.raises(AssertionError, match="while w2 owned it"):
        one_writer_at_a_time([write(3, "20", owner="w2", expression=expression)])


def test_a_checkpoint_that_goes_back_is_found() -> None:
    with pytest.raises(AssertionError, match="went back from 20 to 10"):
        one_writer_at_a_time([write(2, "20"), write(3, "10")])
