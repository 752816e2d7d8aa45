"""What every `StoredTable` must do, whatever stands behind it (leases#conditional-writes). Subclasses supply `service`.

`lease_table` is a table made ready by `ensure`; `rows` plants and reads raw rows, as another program would.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mld.aws.service import Service
from mld.core.clock import LoopClock
from mld.core.positions import LATEST, SHARD_END, TRIM_HORIZON, Position
from mld.core.streams import HashRange
from mld.leases import writes
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.lease import Failing, Lease, ShardStatus
from mld.leases.own_writes import Span
from mld.leases.rows import CorruptRowError
from mld.leases.table import IndexStatus, Overtaken, Refusal, StoredTable
from tests.support.patience import PATIENCE_S
from tests.support.tables import RawRows, unique_table

EPOCH = "00c0ffee00c0ffee"
FIRST = Position("49039857314204006299212589664082056738427629321519628402", 3)
SECOND = Position("49039857314204006299212589664082056738427629458958581874")
RACE_ROUNDS = 5
REQUEST_TIMEOUT_S = PATIENCE_S
RACERS = 16
INDEX_POLLS_MAX = 100
INDEX_POLL_S = 0.1


def new_lease(key: str = "shardId-000000000007", **changes: Any) -> Lease:
    return replace(Lease(key, TRIM_HORIZON), **changes)


def held(answer: Lease | Refusal) -> Lease:
    assert isinstance(answer, Lease), answer
    return answer


async def in_table(table: StoredTable, key: str) -> Lease:
    lease = await table.get(key)
    assert lease is not None
    return lease


async def owned(table: StoredTable, owner: str = "w-1", key: str = "shardId-000000000007") -> Lease:
    """A lease created and taken by `owner`."""
    lease = new_lease(key)
    assert await table.apply(writes.create(lease))
    return held(await table.apply(writes.take(lease, owner)))


async def begin_handoff(rows: RawRows, key: str, next_owner: str) -> None:
    """What a Java leader writes: the next owner, the old one kept as checkpoint owner, the counter untouched."""
    row = await rows.there(key)
    await rows.put(row | {"leaseOwner": {"S": next_owner}, "checkpointOwner": row["leaseOwner"]})


async def index_is_active(table: StoredTable) -> None:
    for _ in range(INDEX_POLLS_MAX):
        if await table.index.status() is IndexStatus.ACTIVE:
            return
        await asyncio.sleep(INDEX_POLL_S)
    pytest.fail("the owner index does not become active")


def adapter(service: Service, name: str, **options: Any) -> DynamoLeaseTable:
    return DynamoLeaseTable(service, LoopClock(), table_name=name, request_timeout_s=REQUEST_TIMEOUT_S, **options)


class LeaseTableContract:
    scan_segments = 1

    @pytest.fixture
    def table_name(self) -> str:
        return unique_table()

    @pytest.fixture
    async def lease_table(self, service: Service, table_name: str) -> DynamoLeaseTable:
        table = adapter(service, table_name, scan_segments=self.scan_segments)
        assert await table.ensure()
        return table

    @pytest.fixture
    def rows(self, service: Service, table_name: str) -> RawRows:
        return RawRows(service, table_name)

    # --- what a renewal tells people

    async def test_a_renewal_tells_the_status_and_takes_away_what_is_not_known_any_more(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table)
        told = ShardStatus("processing", 1_763_661_600, behind_ms=340, delivered=FIRST)
        lease = held(await lease_table.apply(writes.renew(lease, status=told)))
        assert lease.status == told
        lease = held(await lease_table.apply(writes.renew(lease)))
        assert lease.status == told, "a renewal that tells nothing leaves it alone"
        unknown = ShardStatus("idle", 1_763_661_610)
        lease = held(await lease_table.apply(writes.renew(lease, status=unknown)))
        assert lease.status == unknown

    # --- the note of failures

    async def test_a_note_of_failures_stays_until_the_next_checkpoint(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        note = Failing(2, 1_763_661_600, TRIM_HORIZON, attempts=2, first=FIRST)
        lease = held(await lease_table.apply(writes.renew(lease, failing=note)))
        assert lease.failing == note
        lease = held(await lease_table.apply(writes.renew(lease)))
        assert await lease_table.apply(writes.release(lease))
        seen = await in_table(lease_table, lease.key)
        lease = held(await lease_table.apply(writes.take(seen, "w-2")))
        assert lease.failing == note, "the next owner goes on counting"
        lease = held(await lease_table.apply(writes.checkpoint(lease, FIRST)))
        assert lease.failing is None

    # --- table and reads

    async def test_ensure_of_an_existing_table_creates_nothing(self, lease_table: StoredTable) -> None:
        assert not await lease_table.ensure()

    async def test_a_created_lease_reads_back(self, lease_table: StoredTable) -> None:
        lease = new_lease(parents=frozenset({"shardId-1", "shardId-2"}), hash_range=HashRange(0, 2**127))
        assert await lease_table.apply(writes.create(lease))
        assert await lease_table.get(lease.key) == lease

    async def test_a_lease_is_created_once(self, lease_table: StoredTable) -> None:
        assert await lease_table.apply(writes.create(new_lease()))
        assert not await lease_table.apply(writes.create(new_lease(checkpoint=LATEST)))
        assert (await lease_table.get(new_lease().key)) == new_lease()

    async def test_many_leases_are_read_at_once_without_absent_corrupt_and_other_rows(
        self, lease_table: StoredTable, rows: RawRows
    ) -> None:
        leases = {key: new_lease(key) for key in (f"shardId-{number:012d}" for number in range(120))}
        for lease in leases.values():
            assert await lease_table.apply(writes.create(lease))
        await rows.put({"leaseKey": {"S": "w-1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "1"}})
        await rows.put({"leaseKey": {"S": "corrupt"}, "leaseCounter": {"N": "1"}})
        assert await lease_table.get_many([*leases, "w-1", "corrupt", "shardId-404"]) == leases
        assert await lease_table.get_many([]) == {}

    async def test_a_mark_of_earlier_versions_goes_with_the_first_renewal_and_with_its_owner(
        self, lease_table: StoredTable, rows: RawRows
    ) -> None:
        async def marked() -> Lease:
            key = (await in_table(lease_table, new_lease().key)).key
            await rows.put({**await rows.there(key), "mldHeartbeat": {"S": EPOCH}})
            return await in_table(lease_table, key)

        await owned(lease_table)
        status = ShardStatus("idle", 1_763_661_610)
        assert held(await lease_table.apply(writes.renew(await marked(), status=status))).heartbeat is None
        pending = held(await lease_table.apply(writes.begin_handoff(await marked(), "w-2")))
        assert pending.heartbeat == EPOCH, "the old owner goes on"
        assert held(await lease_table.apply(writes.assign(pending, "w-2"))).heartbeat is None
        for give in (writes.take, writes.assign_expired):
            assert held(await lease_table.apply(give(await marked(), "w-3"))).heartbeat is None
        assert await lease_table.apply(writes.release(await marked()))
        assert (await in_table(lease_table, pending.key)).heartbeat is None

    async def test_reads_find_all_leases_name_corrupt_rows_and_know_the_others(
        self, lease_table: StoredTable, rows: RawRows
    ) -> None:
        leases = {new_lease(f"shardId-{number:012d}") for number in range(30)}
        for lease in leases:
            assert await lease_table.apply(writes.create(lease))
        report = {"leaseKey": {"S": "w-1"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"N": "1"}}
        leader = {"leaseKey": {"S": "Leader"}, "entityType": {"S": "LEADER"}}
        for row in (report, leader, {"leaseKey": {"S": "broken"}, "checkpoint": {"S": "TRIM_HORIZON"}}):
            await rows.put(row)

        scan = await lease_table.scan()

        assert set(scan.leases) == leases
        assert scan.unreadable == {"broken"}
        assert sorted(scan.others, key=lambda row: str(row["leaseKey"]["S"])) == [leader, report]
        assert await lease_table.get("Leader") is None
        assert await lease_table.get("shardId-404") is None
        with pytest.raises(CorruptRowError, match="broken"):
            await lease_table.get("broken")

    async def test_no_write_of_a_missing_row_creates_it(self, lease_table: StoredTable) -> None:
        free, lost = new_lease(), new_lease(owner="w-1")
        answers = [
            await lease_table.apply(writes.take(free, "w-1")),
            await lease_table.apply(writes.renew(lost)),
            await lease_table.apply(writes.checkpoint(lost, FIRST)),
            await lease_table.apply(writes.begin_handoff(lost, "w-2")),
            await lease_table.apply(writes.assign(free, "w-2", resent=True)),
            await lease_table.apply(writes.assign(lost, "w-2", resent=True)),
            await lease_table.apply(writes.assign_expired(lost, "w-2")),
        ]
        assert all(isinstance(answer, Refusal) for answer in answers)
        assert not await lease_table.apply(writes.release(lost))
        assert not await lease_table.apply(writes.record_children(lost.key, frozenset({"shardId-8"})))
        assert not await lease_table.apply(writes.fill_hash_range(lost.key, HashRange(5, 9)))
        assert await lease_table.get(lost.key) is None

    # --- take

    async def test_taking_from_another_counts_a_switch(self, lease_table: StoredTable) -> None:
        stolen = held(await lease_table.apply(writes.take(await owned(lease_table, "w-1"), "w-2")))
        assert (stolen.owner, stolen.counter, stolen.owner_switches) == ("w-2", 2, 1)

    async def test_taking_ends_a_handoff(self, lease_table: StoredTable, rows: RawRows) -> None:
        lease = await owned(lease_table, "w-1")
        await begin_handoff(rows, lease.key, "w-2")
        taken = held(await lease_table.apply(writes.take(lease, "w-3")))
        assert (taken.owner, taken.checkpoint_owner) == ("w-3", None)

    async def test_a_resent_take_recognizes_itself_and_nobody_else(self, lease_table: StoredTable) -> None:
        seen = new_lease()
        assert await lease_table.apply(writes.create(seen))
        taken = held(await lease_table.apply(writes.take(seen, "w-1")))
        assert await lease_table.apply(writes.take(seen, "w-1", resent=True)) == taken
        assert isinstance(await lease_table.apply(writes.take(seen, "w-1")), Refusal)
        assert isinstance(await lease_table.apply(writes.take(seen, "w-2", resent=True)), Refusal)

    # --- renew

    async def test_renewing_raises_the_counter_by_one_and_writes_throughput(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        renewed = held(await lease_table.apply(writes.renew(replace(lease, throughput_kbps=412.734375))))
        assert renewed == replace(lease, counter=lease.counter + 1, throughput_kbps=412.734375)
        assert await lease_table.get(lease.key) == renewed

    async def test_renewing_learns_of_a_handoff_and_goes_on_during_it(
        self, lease_table: StoredTable, rows: RawRows
    ) -> None:
        lease = await owned(lease_table, "w-1")
        await begin_handoff(rows, lease.key, "w-2")
        renewed = held(await lease_table.apply(writes.renew(lease)))
        assert (renewed.owner, renewed.checkpoint_owner, renewed.counter) == ("w-2", "w-1", lease.counter + 1)
        assert held(await lease_table.apply(writes.renew(renewed))).counter == lease.counter + 2

    async def test_a_recreated_row_with_the_same_counter_is_not_renewed(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        assert held(await lease_table.apply(writes.take(lease, "w-2"))).counter == 2
        assert isinstance(await lease_table.apply(writes.renew(replace(lease, counter=2))), Refusal)

    async def test_a_renewal_beside_others_of_ours_is_applied_whatever_has_become_of_them(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table)
        n = lease.counter
        assert held(await lease_table.apply(writes.renew(lease, span=Span(n, n + 2)))).counter == n + 1
        renewed = held(await lease_table.apply(writes.renew(lease, span=Span(n, n + 2))))
        assert renewed.counter == n + 2
        assert await lease_table.apply(writes.renew(lease)) == Overtaken(renewed)
        assert await lease_table.apply(writes.renew(lease, span=Span(n, n + 1))) == Overtaken(renewed)

    async def test_it_is_refused_by_a_row_that_others_have(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        assert isinstance(await lease_table.apply(writes.take(lease, "w-2")), Lease)
        refused = await lease_table.apply(writes.renew(lease, span=Span(lease.counter, lease.counter + 5)))
        assert isinstance(refused, Refusal)

    async def test_a_row_naming_us_as_both_owners_is_not_renewed(self, lease_table: StoredTable, rows: RawRows) -> None:
        lease = await owned(lease_table, "w-1")
        await begin_handoff(rows, lease.key, "w-1")
        assert isinstance(await lease_table.apply(writes.renew(lease)), Refusal)

    # --- checkpoint

    async def test_a_checkpoint_stores_position_and_heartbeat_and_drops_the_pending_one(
        self, lease_table: StoredTable, rows: RawRows
    ) -> None:
        lease = await owned(lease_table)
        row = await rows.there(lease.key)
        await rows.put(
            row
            | {
                "ownerSwitchesSinceCheckpoint": {"N": "4"},
                "pendingCheckpoint": {"S": SECOND.sequence},
                "pendingCheckpointSubSequenceNumber": {"N": "2"},
                "pendingCheckpointState": {"B": b"stage-2"},
                "foreign": {"S": "kept"},
            }
        )

        stored = held(await lease_table.apply(writes.checkpoint(lease, FIRST)))

        assert stored == replace(lease, checkpoint=FIRST, counter=lease.counter + 1)
        after = await rows.there(lease.key)
        assert after["foreign"] == {"S": "kept"}
        assert not [name for name in after if name.startswith("pending")]

    async def test_a_checkpoint_during_a_handoff_is_stored(self, lease_table: StoredTable, rows: RawRows) -> None:
        lease = await owned(lease_table, "w-1")
        await begin_handoff(rows, lease.key, "w-2")
        assert held(await lease_table.apply(writes.checkpoint(lease, FIRST))).checkpoint == FIRST

    async def test_a_stale_owner_cannot_checkpoint(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        taken = held(await lease_table.apply(writes.take(lease, "w-2")))
        assert isinstance(
            await lease_table.apply(writes.checkpoint(lease, FIRST, span=Span(lease.counter, lease.counter + 5))),
            Refusal,
        )
        assert await lease_table.get(lease.key) == taken

    async def test_a_checkpoint_beside_others_of_ours_never_takes_a_later_one_back(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table)
        n = lease.counter
        early = writes.checkpoint(lease, FIRST, span=Span(n, n + 3))
        late = writes.checkpoint(lease, SECOND, span=Span(n, n + 3, frozenset({FIRST})))
        assert held(await lease_table.apply(early)).checkpoint == FIRST
        assert held(await lease_table.apply(early)).checkpoint == FIRST
        stored = held(await lease_table.apply(late))
        assert (stored.checkpoint, stored.counter) == (SECOND, n + 3)
        assert await lease_table.apply(early) == Overtaken(stored)

    async def test_one_that_is_new_to_the_row_is_not_undone_by_one_that_may_replace_what_was_seen(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table)
        n = lease.counter
        stored = held(await lease_table.apply(writes.checkpoint(lease, SECOND)))
        behind = writes.checkpoint(lease, FIRST, span=Span(n, n + 1, frozenset({SECOND})))
        assert await lease_table.apply(behind) == Overtaken(stored)

    async def test_an_absent_sub_number_is_replaced_as_0(self, lease_table: StoredTable, rows: RawRows) -> None:
        lease = held(await lease_table.apply(writes.checkpoint(await owned(lease_table), Position(FIRST.sequence))))
        row = dict(await rows.there(lease.key))
        del row["checkpointSubSequenceNumber"]
        await rows.put(row)
        span = Span(lease.counter, lease.counter + 1)
        assert held(await lease_table.apply(writes.checkpoint(lease, SECOND, span=span))).checkpoint == SECOND

    async def test_shard_end_is_never_replaced_but_by_itself(self, lease_table: StoredTable) -> None:
        complete = held(await lease_table.apply(writes.checkpoint(await owned(lease_table), SHARD_END)))
        assert await lease_table.apply(writes.checkpoint(complete, FIRST)) == Overtaken(complete)
        assert await lease_table.get(complete.key) == complete
        assert held(await lease_table.apply(writes.checkpoint(complete, SHARD_END))).counter == complete.counter + 1

    # --- handoff and assignment

    async def test_beginning_a_handoff_names_both_and_leaves_the_counter(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        begun = held(await lease_table.apply(writes.begin_handoff(lease, "w-2")))
        assert begun == replace(lease, owner="w-2", checkpoint_owner="w-1")
        assert await lease_table.get(lease.key) == begun
        assert held(await lease_table.apply(writes.renew(lease))).counter == lease.counter + 1

    async def test_a_handoff_begins_with_the_owner_that_was_seen_though_he_has_renewed(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table, "w-1")
        await lease_table.apply(writes.renew(lease))
        assert held(await lease_table.apply(writes.begin_handoff(lease, "w-2"))).counter == lease.counter + 1

    async def test_a_handoff_begins_once(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        begun = held(await lease_table.apply(writes.begin_handoff(lease, "w-2")))
        assert isinstance(await lease_table.apply(writes.begin_handoff(lease, "w-3")), Refusal)
        assert isinstance(await lease_table.apply(writes.begin_handoff(lease, "w-2")), Refusal)
        assert isinstance(
            await lease_table.apply(writes.begin_handoff(replace(begun, checkpoint_owner=None), "w-3")), Refusal
        )
        assert await lease_table.get(lease.key) == begun

    async def test_the_lease_of_another_is_not_handed_off(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        taken = held(await lease_table.apply(writes.take(lease, "w-2")))
        assert isinstance(await lease_table.apply(writes.begin_handoff(lease, "w-3")), Refusal)
        assert await lease_table.get(lease.key) == taken

    async def test_assigning_a_free_lease_gives_it_an_owner(self, lease_table: StoredTable) -> None:
        assert await lease_table.apply(writes.create(new_lease()))
        assigned = held(await lease_table.apply(writes.assign(new_lease(), "w-1")))
        assert assigned == new_lease(owner="w-1", counter=1)
        assert await lease_table.get(assigned.key) == assigned

    async def test_assigning_an_owned_lease_counts_a_switch_and_does_not_ask_for_the_counter(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table, "w-1")
        await lease_table.apply(writes.renew(lease))
        assigned = held(await lease_table.apply(writes.assign(lease, "w-2")))
        assert (assigned.owner, assigned.counter, assigned.owner_switches) == ("w-2", 3, 1)
        assert isinstance(await lease_table.apply(writes.renew(lease, span=Span(2, 5))), Refusal)

    async def test_assigning_ends_a_handoff_and_its_completion_is_no_switch(self, lease_table: StoredTable) -> None:
        begun = held(await lease_table.apply(writes.begin_handoff(await owned(lease_table, "w-1"), "w-2")))
        assigned = held(await lease_table.apply(writes.assign(begun, "w-2")))
        assert (assigned.owner, assigned.checkpoint_owner) == ("w-2", None)
        assert (assigned.counter, assigned.owner_switches) == (begun.counter + 1, 0)

    async def test_assigning_is_refused_when_either_owner_is_another(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        begun = held(await lease_table.apply(writes.begin_handoff(lease, "w-2")))
        for seen in (
            lease,
            replace(lease, owner=None),
            replace(begun, owner="w-9"),
            replace(begun, owner=None),
            replace(begun, checkpoint_owner="w-9"),
            replace(begun, checkpoint_owner=None),
        ):
            assert isinstance(await lease_table.apply(writes.assign(seen, "w-3")), Refusal)
        assert await lease_table.get(lease.key) == begun

    async def test_a_resent_assignment_recognizes_itself_even_after_the_new_owner_renewed(
        self, lease_table: StoredTable
    ) -> None:
        lease = await owned(lease_table, "w-1")
        renewed = held(
            await lease_table.apply(writes.renew(held(await lease_table.apply(writes.assign(lease, "w-2")))))
        )
        assert await lease_table.apply(writes.assign(lease, "w-2", resent=True)) == renewed
        assert isinstance(await lease_table.apply(writes.assign(lease, "w-2")), Refusal)
        assert isinstance(await lease_table.apply(writes.assign(lease, "w-3", resent=True)), Refusal)

    async def test_a_lease_is_assigned_as_expired_only_if_its_counter_stands(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        renewed = held(await lease_table.apply(writes.renew(lease)))
        assert isinstance(await lease_table.apply(writes.assign_expired(lease, "w-2")), Refusal)
        assigned = held(await lease_table.apply(writes.assign_expired(renewed, "w-2")))
        assert (assigned.owner, assigned.counter) == ("w-2", renewed.counter + 1)

    # --- the whole table, and the owner index

    async def test_the_owner_index_is_created_once_and_becomes_active(self, lease_table: StoredTable) -> None:
        assert await lease_table.index.status() is IndexStatus.MISSING
        assert await lease_table.index.ensure() in (IndexStatus.CREATING, IndexStatus.ACTIVE)
        await index_is_active(lease_table)
        assert await lease_table.index.ensure() is IndexStatus.ACTIVE

    async def test_of_many_creators_of_the_index_none_fails(self, lease_table: StoredTable) -> None:
        answers = await asyncio.gather(*(lease_table.index.ensure() for _ in range(4)))
        assert not {IndexStatus.MISSING, IndexStatus.FORBIDDEN} & set(answers)
        await index_is_active(lease_table)

    @pytest.mark.parametrize("indexed", [True, False])
    async def test_keys_are_found_by_their_next_owner_with_and_without_the_index(
        self, lease_table: StoredTable, indexed: bool
    ) -> None:
        keys = [f"shardId-{number:012d}" for number in range(20)]
        for key in keys:
            await owned(lease_table, "w-2" if key == keys[0] else "w-1", key)
        await lease_table.apply(writes.create(new_lease("free")))
        leaving = await in_table(lease_table, keys[1])
        held(await lease_table.apply(writes.begin_handoff(leaving, "w-2")))
        if indexed:
            await lease_table.index.ensure()
            await index_is_active(lease_table)

        assert set(await lease_table.index.keys_owned_by("w-1")) == set(keys[2:])
        assert set(await lease_table.index.keys_owned_by("w-2")) == set(keys[:2])
        assert await lease_table.index.keys_owned_by("w-3") == ()

    # --- release, children, deletion

    async def test_a_released_lease_has_no_owner_and_a_new_counter(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        assert await lease_table.apply(writes.release(lease))
        assert await lease_table.get(lease.key) == replace(lease, owner=None, counter=lease.counter + 1)
        assert not await lease_table.apply(writes.release(lease))

    async def test_a_release_after_an_unseen_renewal_works(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        await lease_table.apply(writes.renew(lease))
        assert await lease_table.apply(writes.release(lease))

    @pytest.mark.parametrize("knows", [True, False])
    async def test_a_release_in_a_handoff_frees_the_lease(
        self, lease_table: StoredTable, rows: RawRows, knows: bool
    ) -> None:
        lease = await owned(lease_table, "w-1")
        await begin_handoff(rows, lease.key, "w-2")
        seen = await in_table(lease_table, lease.key) if knows else lease
        assert await lease_table.apply(writes.release(seen))
        after = await lease_table.get(lease.key)
        assert after == replace(lease, owner=None, counter=lease.counter + 1)

    async def test_the_lease_of_another_is_not_released(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-1")
        taken = held(await lease_table.apply(writes.take(lease, "w-2")))
        assert not await lease_table.apply(writes.release(lease))
        assert await lease_table.get(lease.key) == taken

    async def test_children_are_noted_without_a_heartbeat(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        children = frozenset({"shardId-8", "shardId-9"})
        assert await lease_table.apply(writes.record_children(lease.key, children))
        assert await lease_table.get(lease.key) == replace(lease, children=children)

    async def test_a_hash_range_is_filled_in_where_there_is_none(self, lease_table: StoredTable) -> None:
        lease = replace(new_lease(), hash_range=None)
        assert await lease_table.apply(writes.create(lease))
        assert await lease_table.apply(writes.fill_hash_range(lease.key, HashRange(5, 9)))
        assert await lease_table.get(lease.key) == replace(lease, hash_range=HashRange(5, 9))
        assert not await lease_table.apply(writes.fill_hash_range(lease.key, HashRange(5, 10)))
        assert await lease_table.get(lease.key) == replace(lease, hash_range=HashRange(5, 9))

    async def test_only_complete_leases_are_deleted(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        assert not await lease_table.apply(writes.delete_completed(lease.key))
        await lease_table.apply(writes.checkpoint(lease, SHARD_END))
        assert await lease_table.apply(writes.delete_completed(lease.key))
        assert await lease_table.get(lease.key) is None
        assert not await lease_table.apply(writes.delete_completed(lease.key))

    async def test_a_lease_that_anybody_has_written_since_is_not_deleted(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table)
        renewed = held(await lease_table.apply(writes.renew(lease)))
        assert not await lease_table.apply(writes.delete_unchanged(lease))
        handed = held(await lease_table.apply(writes.begin_handoff(renewed, "w-2")))
        assert not await lease_table.apply(writes.delete_unchanged(renewed)), "a handoff leaves the counter"
        assert await lease_table.apply(writes.delete_unchanged(handed))
        assert await lease_table.get(lease.key) is None

    # --- races

    async def test_of_many_takers_one_wins_each_round(self, lease_table: StoredTable) -> None:
        assert await lease_table.apply(writes.create(new_lease()))
        for round_number in range(RACE_ROUNDS):
            seen = await in_table(lease_table, new_lease().key)
            answers = await asyncio.gather(
                *(lease_table.apply(writes.take(seen, f"w-{racer}")) for racer in range(RACERS))
            )
            winners = [answer for answer in answers if isinstance(answer, Lease)]
            assert len(winners) == 1, f"round {round_number}"
            assert await lease_table.get(seen.key) == winners[0]

    async def test_renewal_and_take_of_one_counter_never_both_succeed(self, lease_table: StoredTable) -> None:
        lease = await owned(lease_table, "w-0")
        for round_number in range(1, RACE_ROUNDS):
            answers = await asyncio.gather(
                lease_table.apply(writes.renew(lease)), lease_table.apply(writes.take(lease, f"w-{round_number}"))
            )
            winners = [answer for answer in answers if isinstance(answer, Lease)]
            assert len(winners) == 1
            lease = winners[0]
