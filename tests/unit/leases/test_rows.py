"""Lease rows: worked rows (leases#example-rows), lenient reading, strict creation (leases#strict-creation)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core.positions import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.leases.lease import ChildFigures, Failing, Lease, PendingCheckpoint, ShardStatus
from mld.leases.rows import (
    CorruptRowError,
    failing_value,
    new_row,
    number_text,
    parse_row,
    status_values,
)
from mld.metrics.trend import TREND_STEPS
from tests.twins.dynamo_prices import WRITE_UNIT_BYTES, item_bytes

SEQUENCE = "49039857314204006299212589664082056738427629321519628402"
NEXT_SEQUENCE = "49039857314204006299212589664082056738427629458958581874"
HALF = "170141183460469231731687303715884105727"
QUARTER = "85070591730234615865843651857942052863"

MINIMAL: dict[str, dict[str, Any]] = {
    "leaseKey": {"S": "shardId-000000000002"},
    "leaseCounter": {"N": "7"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "LATEST"},
}

NEW_ROOT = {
    "leaseKey": {"S": "shardId-000000000007"},
    "leaseCounter": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": HALF},
    "entityType": {"S": "LEASE"},
}
NEW_ROOT_LEASE = Lease("shardId-000000000007", TRIM_HORIZON, hash_range=HashRange(0, int(HALF)))

NEW_CHILD = NEW_ROOT | {
    "leaseKey": {"S": "shardId-000000000011"},
    "parentShardId": {"SS": ["shardId-000000000007"]},
    "endingHashKey": {"S": QUARTER},
}
NEW_CHILD_LEASE = Lease(
    "shardId-000000000011",
    TRIM_HORIZON,
    parents=frozenset({"shardId-000000000007"}),
    hash_range=HashRange(0, int(QUARTER)),
)

STREAM = "111111111:multiStreamTest-1:12345"
WORKED_ROWS = {
    "new root": (NEW_ROOT, NEW_ROOT_LEASE),
    "new child": (NEW_CHILD, NEW_CHILD_LEASE),
    "in a handoff": (
        {
            "leaseKey": {"S": "shardId-000000000007"},
            "leaseOwner": {"S": "w-9b2e"},
            "checkpointOwner": {"S": "w-4f1c"},
            "leaseCounter": {"N": "120"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": NEXT_SEQUENCE},
            "checkpointSubSequenceNumber": {"N": "0"},
            "throughputKBps": {"N": "398.5"},
            "startingHashKey": {"S": "0"},
            "endingHashKey": {"S": HALF},
            "entityType": {"S": "LEASE"},
        },
        Lease(
            "shardId-000000000007",
            Position(NEXT_SEQUENCE),
            120,
            "w-9b2e",
            "w-4f1c",
            hash_range=HashRange(0, int(HALF)),
            throughput_kbps=398.5,
        ),
    ),
    "prepared with state": (
        {
            "leaseKey": {"S": "shardId-000000000007"},
            "leaseOwner": {"S": "w-9b2e"},
            "leaseCounter": {"N": "131"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": SEQUENCE},
            "checkpointSubSequenceNumber": {"N": "0"},
            "pendingCheckpoint": {"S": NEXT_SEQUENCE},
            "pendingCheckpointSubSequenceNumber": {"N": "2"},
            "pendingCheckpointState": {"B": b"stage-2"},
            "entityType": {"S": "LEASE"},
        },
        Lease(
            "shardId-000000000007",
            Position(SEQUENCE),
            131,
            "w-9b2e",
            pending=PendingCheckpoint(Position(NEXT_SEQUENCE, 2), b"stage-2"),
        ),
    ),
    "finished parent": (
        {
            "leaseKey": {"S": "shardId-000000000007"},
            "leaseOwner": {"S": "w-9b2e"},
            "leaseCounter": {"N": "940"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "SHARD_END"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "childShardIds": {"SS": ["shardId-000000000011", "shardId-000000000012"]},
            "throughputKBps": {"N": "0"},
        },
        Lease(
            "shardId-000000000007",
            SHARD_END,
            940,
            "w-9b2e",
            children=frozenset({"shardId-000000000011", "shardId-000000000012"}),
            throughput_kbps=0.0,
        ),
    ),
    "written by 2.2": (
        {
            "leaseKey": {"S": "shardId-000000000002"},
            "leaseOwner": {"S": "old-host-1"},
            "leaseCounter": {"N": "50211"},
            "ownerSwitchesSinceCheckpoint": {"N": "4"},
            "checkpoint": {"S": "AT_TIMESTAMP"},
            "checkpointSubSequenceNumber": {"N": "0"},
        },
        Lease("shardId-000000000002", AT_TIMESTAMP, 50211, "old-host-1", owner_switches=4),
    ),
    "of several streams": (
        {
            "leaseKey": {"S": f"{STREAM}:shardId-000000000336"},
            "streamName": {"S": STREAM},
            "shardId": {"S": "shardId-000000000336"},
            "leaseCounter": {"N": "3"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
            "checkpoint": {"S": "LATEST"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "parentShardId": {"SS": ["shardId-000000000330"]},
        },
        Lease(
            f"{STREAM}:shardId-000000000336",
            LATEST,
            3,
            parents=frozenset({"shardId-000000000330"}),
            stream=STREAM,
        ),
    ),
}


NOTE = Failing(7, 1_763_661_600, Position(SEQUENCE, 2), attempts=3, first=Position(NEXT_SEQUENCE, 4))
NO_STREAM = {"stream": None, "shard_id": "shardId-000000000002"}
TOLD = ShardStatus("idle", 1_763_661_600, 340, Position(SEQUENCE, 3), "slow", child=ChildFigures(475.3, None, 2))
TOLD_ROW = {
    "mldState": {"S": "idle"},
    "mldBehindAt": {"N": "1763661600"},
    "mldBehindMs": {"N": "340"},
    "mldDelivered": {"S": f"{SEQUENCE}/3"},
    "mldWhy": {"S": "slow"},
    "mldChild": {"S": "1763661600 475.3 - 2"},
}


def read(changes: dict[str, Any]) -> Lease:
    """The lease of the smallest row with these changes."""
    lease = parse_row(MINIMAL | changes)
    assert lease is not None
    return lease


@pytest.mark.parametrize(("row", "lease"), WORKED_ROWS.values(), ids=WORKED_ROWS)
def test_a_worked_row_reads_as_its_lease(row: dict[str, Any], lease: Lease) -> None:
    assert parse_row(row) == lease


def test_a_new_lease_of_several_streams_names_stream_and_shard() -> None:
    row = new_row(Lease(f"{STREAM}:shardId-7", TRIM_HORIZON, stream=STREAM))
    assert (row["streamName"], row["shardId"]) == ({"S": STREAM}, {"S": "shardId-7"})
    assert parse_row(row) == Lease(f"{STREAM}:shardId-7", TRIM_HORIZON, stream=STREAM)


@pytest.mark.parametrize(("row", "lease"), [(NEW_ROOT, NEW_ROOT_LEASE), (NEW_CHILD, NEW_CHILD_LEASE)])
def test_a_new_lease_writes_the_worked_row(row: dict[str, Any], lease: Lease) -> None:
    assert new_row(lease) == row


@pytest.mark.parametrize("entity", ["STREAM", "LEADER", "WORKER_METRIC_STATS", "SOMETHING_NEW"])
def test_rows_of_other_entity_types_are_skipped_unread(entity: str) -> None:
    assert parse_row({"leaseKey": {"S": "x"}, "entityType": {"S": entity}}) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"leaseCounter": {"N": "5E+1"}}, {"counter": 50}),
        ({"throughputKBps": {"N": "1.5E-3"}}, {"throughput_kbps": 0.0015}),
        ({"throughputKBps": {"S": "fast"}}, {"throughput_kbps": None}),
        ({"throughputKBps": {"N": "1E+22"}}, {"throughput_kbps": None}),
        ({"pendingCheckpoint": {"S": ""}}, {"pending": None}),
        ({"pendingCheckpoint": {"S": "17"}}, {"pending": PendingCheckpoint(Position("17"))}),
        ({"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "5"}}, {"hash_range": HashRange(5, 5)}),
        ({"startingHashKey": {"S": "5"}}, {"hash_range": None}),
        ({"leaseOwner": {"NULL": True}}, {"owner": None}),
        ({"leaseOwner": {"S": ""}}, {"owner": None}),
        ({"somethingElse": {"M": {}}}, {}),
        *(({"streamName": what}, NO_STREAM) for what in ({"S": "orders"}, {"S": "1:orders:0"}, {"N": "7"})),
        # the note of failures
        ({"mldFailing": failing_value(NOTE)}, {"failing": NOTE}),
        ({"mldFailing": failing_value(Failing(1, 0, TRIM_HORIZON))}, {"failing": Failing(1, 0, TRIM_HORIZON)}),
        # what the holder tells people: without activity or time nothing, else what is not damaged
        (status_values(TOLD), {"status": TOLD}),
        (TOLD_ROW | {"mldState": {"N": "1"}}, {"status": None}),
        (TOLD_ROW | {"mldState": {"S": "x" * 400_000}}, {"status": None}),
        (TOLD_ROW | {"mldBehindAt": {"N": "1e9"}}, {"status": None}),
        (TOLD_ROW | {"mldBehindAt": {"N": "-1"}}, {"status": None}),
        (TOLD_ROW | {"mldBehindMs": {"N": "-1"}}, {"status": replace(TOLD, behind_ms=None)}),
        (TOLD_ROW | {"mldDelivered": {"S": "nonsense"}}, {"status": replace(TOLD, delivered=None)}),
        (TOLD_ROW | {"mldDelivered": {"S": f"{SEQUENCE}/x"}}, {"status": replace(TOLD, delivered=None)}),
        (TOLD_ROW | {"mldWhy": {"L": []}}, {"status": replace(TOLD, why=None)}),
        # the figures of a child mean nothing with the status of a holder that does not write them
        (TOLD_ROW, {"status": TOLD}),
        (TOLD_ROW | {"mldChild": {"S": "1763661500 475.3 - 2"}}, {"status": replace(TOLD, child=None)}),
        (TOLD_ROW | {"mldChild": {"S": "1763661600 1e9 - 2"}}, {"status": replace(TOLD, child=None)}),
        (TOLD_ROW | {"mldChild": {"S": "1763661600 - - 2" + "0" * 400}}, {"status": replace(TOLD, child=None)}),
        (TOLD_ROW | {"mldChild": {"N": "1"}}, {"status": replace(TOLD, child=None)}),
        # whatever marks a pause pauses
        ({"mldPaused": {"S": "by me"}}, {"paused": "by me"}),
        ({"mldPaused": {"S": "x" * 300}}, {"paused": "x" * 200}),
        *(({"mldPaused": what}, {"paused": "paused"}) for what in ({"S": ""}, {"NULL": True}, {"N": "1"})),
        # a pin that is no time pins nothing
        ({"mldPinnedUntil": {"N": "1763661600"}}, {"pinned_until_s": 1_763_661_600}),
        *(({"mldPinnedUntil": what}, {"pinned_until_s": None}) for what in ({"N": "1e9"}, {"N": "-1"}, {"S": "1"})),
    ],
)
def test_reading_tolerates(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    lease = read(changes)
    assert {name: getattr(lease, name) for name in expected} == expected
    assert lease.checkpoint == LATEST


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"leaseCounter": None}, "leaseCounter is missing"),
        ({"ownerSwitchesSinceCheckpoint": None}, "ownerSwitchesSinceCheckpoint is missing"),
        ({"checkpoint": None}, "checkpoint is missing"),
        ({"checkpoint": {"S": ""}}, "checkpoint is missing"),
        ({"checkpoint": {"S": "YESTERDAY"}}, "YESTERDAY"),
        ({"checkpoint": {"N": "17"}}, "checkpoint is not a string"),
        ({"leaseCounter": {"S": "7"}}, "leaseCounter is not a number"),
        ({"leaseCounter": {"N": "7.5"}}, "not an integer"),
        ({"leaseCounter": {"N": "1E+99999999"}}, "not an integer"),
        ({"leaseCounter": {"N": "seven"}}, "not a number: seven"),
        ({"startingHashKey": {"S": "6"}, "endingHashKey": {"S": "5"}}, "no range"),
        ({"startingHashKey": {"S": "0"}, "endingHashKey": {"S": str(HASH_KEY_MAX + 1)}}, "no range"),
        ({"startingHashKey": {"S": "zero"}, "endingHashKey": {"S": "5"}}, "not decimal"),
        ({"pendingCheckpoint": {"S": "17"}, "pendingCheckpointState": {"S": "x"}}, "not binary"),
        ({"parentShardId": {"S": "shardId-1"}}, "parentShardId is not a string set"),
        ({"leaseKey": None}, "leaseKey is missing"),
        ({"streamName": {"S": "1:orders:7"}}, "streamName is 1:orders:7"),
    ],
)
def test_a_corrupt_row_is_named_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    row = {name: value for name, value in (MINIMAL | changes).items() if value is not None}
    with pytest.raises(CorruptRowError, match=reason) as caught:
        parse_row(row)
    assert caught.value.key in ("shardId-000000000002", "(no leaseKey)")


@pytest.mark.parametrize(
    "lease",
    [
        Lease("", TRIM_HORIZON),
        Lease("s", TRIM_HORIZON, counter=1),
        Lease("s", TRIM_HORIZON, owner_switches=1),
        Lease("s", TRIM_HORIZON, owner=""),
        Lease("s", TRIM_HORIZON, checkpoint_owner="w"),
        Lease("s", Position("TRIM_HORIZON", 1)),
        Lease("s", Position("17", -1)),
        Lease("s", TRIM_HORIZON, hash_range=HashRange(6, 5)),
        Lease("s", TRIM_HORIZON, hash_range=HashRange(0, HASH_KEY_MAX + 1)),
        Lease("s", TRIM_HORIZON, pending=PendingCheckpoint(Position("17"))),
        Lease("s", TRIM_HORIZON, stream="1:orders:7"),
        Lease("orders:s", TRIM_HORIZON, stream="orders"),
    ],
)
def test_what_no_row_may_be_born_with_is_refused(lease: Lease) -> None:
    with pytest.raises(ValueError, match="lease"):
        new_row(lease)


def test_a_hash_range_of_one_key_is_left_out_of_new_rows() -> None:
    assert "startingHashKey" not in new_row(Lease("s", TRIM_HORIZON, hash_range=HashRange(5, 5)))


@given(
    st.builds(
        Lease,
        key=st.text(min_size=1),
        checkpoint=st.one_of(
            st.sampled_from([TRIM_HORIZON, LATEST, AT_TIMESTAMP, SHARD_END]),
            st.builds(Position, st.integers(0, 10**56).map(str), st.integers(0, 10**6)),
        ),
        owner=st.none() | st.text(min_size=1),
        parents=st.frozensets(st.text(min_size=1), max_size=2),
        children=st.frozensets(st.text(min_size=1), max_size=2),
        hash_range=st.none() | st.builds(HashRange, st.integers(0, 99), st.integers(100, HASH_KEY_MAX)),
    )
)
def test_every_new_row_reads_back_as_its_lease(lease: Lease) -> None:
    assert parse_row(new_row(lease)) == lease


@pytest.mark.parametrize(
    ("value", "text"), [(412.734375, "412.734375"), (0.0, "0"), (398.5, "398.5"), (1e-9, "0"), (1e21, "1" + "0" * 21)]
)
def test_a_throughput_is_written_without_exponent(value: float, text: str) -> None:
    assert number_text(value) == text


# --- the note of failures


def test_a_note_of_failures_can_be_read_in_the_table() -> None:
    assert failing_value(NOTE) == {
        "M": {
            "failures": {"N": "7"},
            "since": {"S": "2025-11-20T18:00:00+00:00"},
            "checkpoint": {"S": SEQUENCE},
            "checkpointSubSequenceNumber": {"N": "2"},
            "attempts": {"N": "3"},
            "sequenceNumber": {"S": NEXT_SEQUENCE},
            "subSequenceNumber": {"N": "4"},
        }
    }


def test_a_note_about_another_checkpoint_means_nothing_any_more() -> None:
    lease = Lease("k", NOTE.checkpoint, failing=NOTE)
    assert lease.failing_now is NOTE
    assert lease.lacking(NOTE) is None
    moved = Lease("k", Position(NEXT_SEQUENCE), failing=NOTE)
    assert moved.failing_now is None
    assert moved.lacking(Failing(8, 0, NOTE.checkpoint)) is None, "a note that is late must not be written"
    assert lease.lacking(Failing(8, 0, NOTE.checkpoint)) == Failing(8, 0, NOTE.checkpoint)


def test_a_status_is_no_part_of_what_makes_two_leases_equal() -> None:
    assert read(TOLD_ROW) == read({})


def test_a_row_with_all_that_it_tells_people_is_one_write_unit() -> None:
    lease = Lease(
        "shardId-000000000000",
        Position("4" * 56),
        owner=f"ip-10-0-0-123.eu-central-1.compute.internal:{'5f0c9a2e' * 4}",
        hash_range=HashRange(HASH_KEY_MAX - 10, HASH_KEY_MAX),
        parents=frozenset({"shardId-000000000001", "shardId-000000000002"}),
        throughput_kbps=1234.567891,
    )
    told = ShardStatus(
        "unreadable",
        1_763_661_600,
        123_456_789,
        lease.checkpoint,
        "x" * 200,
        "A" * TREND_STEPS,
        ChildFigures(99_999.9, 86_400, 999),
    )
    assert item_bytes({**new_row(lease), **status_values(told)}) <= WRITE_UNIT_BYTES
