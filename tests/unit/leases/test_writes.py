"""Requests and judgements of the conditional writes (leases#conditional-writes)."""

from __future__ import annotations

from typing import Any

import pytest

from mld.core.positions import SHARD_END, Position
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import Overtaken, Refusal
from mld.leases.write_request import request_of

AT = Position("100")
LATER = Position("200", 2)
MINE = Lease("shardId-7", AT, counter=118, owner="me")
HANDED = Lease("shardId-7", AT, counter=118, owner="next", checkpoint_owner="me")


def row(**changes: Any) -> Lease:
    return Lease(**({"key": "shardId-7", "checkpoint": AT, "counter": 118, "owner": "me"} | changes))


# --- requests


def test_a_renewal_names_each_attribute_by_placeholder_and_asks_for_both_rows() -> None:
    operation, request = request_of(writes.renew(MINE))
    assert operation == "UpdateItem"
    assert request["Key"] == {"leaseKey": {"S": "shardId-7"}}
    assert request["ExpressionAttributeNames"] == {
        "#leaseCounter": "leaseCounter",
        "#leaseOwner": "leaseOwner",
        "#checkpointOwner": "checkpointOwner",
    }
    assert request["ExpressionAttributeValues"] == {":seen": {"N": "118"}, ":next": {"N": "119"}, ":me": {"S": "me"}}
    assert request["ReturnValues"] == "ALL_NEW"
    assert request["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


def test_a_sentinel_is_always_stored_with_sub_number_zero() -> None:
    _, request = request_of(writes.checkpoint(MINE, Position("SHARD_END", 5)))
    assert request["ExpressionAttributeValues"][":sub"] == {"N": "0"}


@pytest.mark.parametrize(
    ("owner", "checkpoint_owner", "new_owner", "is_switch"),
    [
        (None, None, "me", False),
        ("other", None, "me", True),
        ("me", None, "me", False),
        ("next", "me", "me", True),  # back to the old owner: Java counts it
        ("me", "old", "me", False),  # the completion of a graceful handoff
        ("me", "me", "me", True),
    ],
)
def test_owner_switches_count_as_java_counts(
    owner: str | None, checkpoint_owner: str | None, new_owner: str, is_switch: bool
) -> None:
    seen = row(owner=owner, checkpoint_owner=checkpoint_owner)
    assert writes.is_owner_switch(seen, new_owner) is is_switch
    assert ("ADD" in request_of(writes.take(seen, new_owner))[1]["UpdateExpression"]) is is_switch


def test_a_write_of_a_shard_among_several_streams_goes_to_its_row_there() -> None:
    _, request = request_of(writes.of_stream(writes.record_children("shardId-7", frozenset({"b"})), "1:orders:5"))
    assert request["Key"] == {"leaseKey": {"S": "1:orders:5:shardId-7"}}
    assert request["ExpressionAttributeValues"][":key"] == {"S": "1:orders:5:shardId-7"}
    _, request = request_of(writes.of_stream(writes.create(Lease("shardId-7", AT)), "1:orders:5"))
    assert request["Item"]["leaseKey"] == {"S": "1:orders:5:shardId-7"}
    assert (request["Item"]["streamName"], request["Item"]["shardId"]) == ({"S": "1:orders:5"}, {"S": "shardId-7"})


# --- assignments


@pytest.mark.parametrize("seen", [row(owner=None), HANDED])
def test_only_an_owned_lease_is_handed_to_somebody_else(seen: Lease) -> None:
    with pytest.raises(AssertionError):
        writes.begin_handoff(seen, "next")


# --- judgements


@pytest.mark.parametrize(
    ("seen", "found", "is_ours"),
    [
        (MINE, None, False),
        (MINE, row(owner="other", counter=119), False),
        (MINE, row(owner=None, counter=119), False),
        (MINE, row(owner="me", checkpoint_owner="other", counter=119), False),
        (MINE, row(owner="me", checkpoint_owner="me", counter=119), False),
        (MINE, row(counter=119), True),
        (MINE, row(counter=117), False),
        # a handoff began between a write of ours and the one that was refused
        (MINE, row(owner="next", checkpoint_owner="me", counter=119), True),
        # during a handoff the actual owner decides, not the next one
        (HANDED, row(owner="next", checkpoint_owner="me", counter=119), True),
        (HANDED, row(owner="next", counter=119), False),
        # another worker took the lease, and we or it gave it back, perhaps after a checkpoint: no twin
        (MINE, row(counter=121, owner_switches=2), False),
        (row(owner_switches=2), row(counter=121, owner_switches=4), False),
        (row(owner_switches=2), row(counter=122, owner_switches=1), False),
        (row(owner_switches=1), row(counter=122, owner_switches=1, checkpoint=LATER), False),
        # a twin renews, and checkpoints; the counter tells
        (row(owner_switches=1), row(counter=120, owner_switches=1), True),
        (row(owner_switches=1), row(counter=120, checkpoint=LATER), True),
        # the leader has assigned the lease back to us: no twin, and a new holding
        (HANDED, row(owner="me", counter=119), False),
    ],
)
def test_a_refused_renewal_or_checkpoint_means(seen: Lease, found: Lease | None, is_ours: bool) -> None:
    answer = writes.judge_refused(seen, found)
    if is_ours:
        assert answer == Overtaken(found)  # type: ignore[arg-type]
    else:
        assert isinstance(answer, Refusal)
        assert not answer.by_twin


def test_a_checkpoint_refused_by_a_complete_row_of_ours_shows_that_row() -> None:
    found = row(checkpoint=SHARD_END)
    assert writes.judge_refused(MINE, found) == Overtaken(found)


@pytest.mark.parametrize(
    ("found", "resent", "is_ours"),
    [
        (row(owner="me", counter=119), True, True),
        (row(owner="me", counter=119), False, False),
        (row(owner="me", counter=120), True, False),
        (row(owner="me", checkpoint_owner="old", counter=119), True, False),
        (row(owner="rival", counter=119), True, False),
        (None, True, False),
    ],
)
def test_a_refused_take_is_ours_only_after_a_repetition(found: Lease | None, resent: bool, is_ours: bool) -> None:
    seen = row(owner="dead")
    answer = writes.judge_refused_take(seen, "me", found, resent=resent)
    assert (answer == found) if is_ours else isinstance(answer, Refusal)


@pytest.mark.parametrize(
    ("seen", "found", "resent", "is_done"),
    [
        (HANDED, row(owner="next", counter=119), True, True),
        (HANDED, row(owner="next", counter=131), True, True),  # the next owner has begun to renew
        (HANDED, row(owner="next", counter=119), False, False),  # the leader was quicker than our first attempt
        (HANDED, row(owner="third", counter=119), True, False),
        (HANDED, row(owner="third", checkpoint_owner="next", counter=119), True, False),
        (MINE, HANDED, True, False),
        (MINE, MINE, True, False),
        (MINE, None, True, False),
    ],
)
def test_a_refused_assignment_is_done_only_after_a_repetition(
    seen: Lease, found: Lease | None, resent: bool, is_done: bool
) -> None:
    answer = writes.judge_refused_assign(seen, "next", found, resent=resent)
    assert (answer == found) if is_done else isinstance(answer, Refusal)


@pytest.mark.parametrize(
    ("seen", "found", "goes_on"),
    [
        (MINE, None, False),
        (MINE, row(owner=None, counter=119), False),
        (MINE, row(owner="other"), False),
        (MINE, row(), False),
        (MINE, HANDED, True),
        (HANDED, row(owner="third", checkpoint_owner="me"), True),
        (HANDED, row(owner="next"), False),
    ],
)
def test_a_refused_release_goes_on_only_with_other_owners_of_ours(
    seen: Lease, found: Lease | None, goes_on: bool
) -> None:
    assert writes.judge_refused_release(seen, found) == (found if goes_on else None)
