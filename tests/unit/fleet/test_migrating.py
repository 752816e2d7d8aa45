"""Both migrations, carried out or followed: whole fleets in virtual time (coordination#both-migrations)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from mld.core.errors import AwsError, AwsUnreachableError, StartupError, TableError
from mld.fleet.leader.lock_election import LockElection
from mld.fleet.leader.lock_table import LockTable
from mld.fleet.migrate.states import (
    CLIENT_VERSION,
    TABLE_MIGRATION,
    ClientVersion,
    StateRow,
    TableStatus,
    first_row,
    item_of,
    parse_state,
)
from mld.fleet.migrate.states_table import StatesTable
from mld.fleet.migrate.table_migration import (
    LATE_TABLE_PERIOD_S,
    LEADER_CHECK_S,
    MigrationCompletedError,
    TableMigration,
)
from mld.fleet.migrate.version_machine import START_ATTEMPTS_MAX, Components, FleetView, VersionMachine
from mld.leases.rows import Place
from mld.leases.table_maker import LegacyTable, on_demand
from mld.properties.values import ClientVersionConfig as Configured
from mld.properties.values import MetadataLayout
from tests.support.fleet import settings_of
from tests.support.settings import rules
from tests.twins.dynamo import Fault, MemoryDynamo, lost_reply, lost_request, throttled
from tests.twins.streams import VirtualClock
from tests.virtual_time import asked_of_pytest
from tests.virtual_time import virtual as in_virtual_time

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
LEASES = Place("app", "leaseKey")
STATES = Place("app-CoordinatorState", "key")
REPORTS = Place("app-WorkerMetricStats", "wid")
HOUR_S = 3600.0
CHECK_S = 1.0  # how often the scheduler of a worker asks who leads


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    async def run(**asked: Any) -> None:
        await test(Bed(), **asked)

    return asked_of_pytest(test, in_virtual_time(run), "bed")


class Bed:
    """One application in an in-memory DynamoDB."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.dynamo = MemoryDynamo(self.clock)
        self.states = StatesTable(self.dynamo)

    async def create(self, *places: Place) -> None:
        for place in places:
            await LegacyTable(self.dynamo, self.clock, on_demand(place.table), place.key).ensure()

    async def legacy(self) -> None:
        """The layout of 3.0 to 3.4."""
        await self.create(LEASES, STATES, REPORTS)

    def put(self, place: Place, row: StateRow[Any]) -> None:
        self.dynamo.put_row(place.table, item_of(row, place))

    def stored(self, kind: Any, place: Place) -> Any:
        item = self.dynamo.row(place.table, kind.key)
        return None if item is None else parse_state(kind, item, place).state

    @property
    def status(self) -> TableStatus | None:
        return self.stored(TABLE_MIGRATION, STATES)  # type: ignore[no-any-return]

    def put_status(self, state: TableStatus) -> None:
        self.put(STATES, first_row(TABLE_MIGRATION, state, "w-0", int(self.clock.wall() * 1000)))

    def put_version(self, version: ClientVersion, place: Place = LEASES) -> None:
        """As the migration tool, or another worker, would."""
        self.put(place, first_row(CLIENT_VERSION, version, "KclMigrationTool-rollback", 1))

    def put_lock(self, owner: str) -> None:
        self.dynamo.put_row(STATES.table, {"key": {"S": "Leader"}, "ownerName": {"S": owner}})

    def migration(
        self,
        worker: str = "w-1",
        *,
        migrate: bool = False,
        create_legacy: bool = False,
        client_version: Configured | None = None,
    ) -> TableMigration:
        service = self.dynamo.client(worker)
        return TableMigration(
            StatesTable(service),
            self.clock,
            replace(
                rules(
                    migrates_to_lease_table=migrate,
                    metadata_layout=MetadataLayout.LEGACY if create_legacy else MetadataLayout.AUTO,
                    client_version=client_version,
                ),
                lease_table=on_demand(LEASES.table),
            ),
            coordinator=LegacyTable(service, self.clock, on_demand(STATES.table), STATES.key),
            reports=LegacyTable(service, self.clock, on_demand(REPORTS.table), REPORTS.key),
        )

    async def started(self, worker: str = "w-1", *, migrate: bool = False) -> TableMigration:
        migration = self.migration(worker, migrate=migrate)
        await migration.start()
        return migration

    async def lead(self, migration: TableMigration, seconds: float) -> None:
        """`migration`'s worker leads: its scheduler asks for the leader every second."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            await migration.on_check(True)
            await self.clock.sleep(CHECK_S)


# --- table migration: start


@virtual
async def test_a_fresh_application_has_one_table(bed):
    await bed.create(LEASES)
    migration = await bed.started()
    assert migration.status is COMPLETE
    assert migration.routes.lock_place == migration.routes.write_place == migration.routes.report_place == LEASES
    assert migration.routes.read_places == migration.routes.report_read_places == (LEASES,)
    await migration.on_check(True)
    assert bed.dynamo.rows(LEASES.table) == {}, "COMPLETE by absence is not written"


@virtual
async def test_the_legacy_layout_is_found(bed):
    await bed.legacy()
    migration = await bed.started()
    assert migration.status is INIT
    assert migration.routes.lock_place == migration.routes.write_place == STATES
    assert migration.routes.report_place == REPORTS
    assert migration.routes.read_places == (STATES, LEASES)


@virtual
async def test_a_forbidden_describe_fails_the_start_and_names_the_permission(bed):
    await bed.create(LEASES)
    denied = Fault(fail_before=AwsError("DescribeTable", "AccessDeniedException", "no"))
    bed.dynamo.faults = lambda _, operation, __: denied if operation == "DescribeTable" else None
    with pytest.raises(StartupError, match="allow dynamodb:DescribeTable"):
        await bed.started()


@virtual
async def test_an_unanswered_describe_is_not_taken_for_a_missing_table(bed):
    await bed.legacy()
    for fault in (lost_request("DescribeTable"), lost_reply("DescribeTable"), throttled("DescribeTable")):
        bed.dynamo.faults = lambda *_, fault=fault: fault
        with pytest.raises(TableError):
            await bed.started()


@virtual
async def test_a_table_that_a_peer_is_just_creating_is_waited_for(bed):
    await bed.create(LEASES, REPORTS)
    bed.dynamo.creation_s = 15.0
    creation = asyncio.create_task(bed.create(STATES))
    await bed.clock.sleep(1)
    assert (await bed.started()).status is INIT
    assert bed.clock.monotonic() >= 15
    await creation


@virtual
async def test_the_legacy_tables_are_created_if_the_layout_says_so(bed):
    await bed.create(LEASES)
    migration = bed.migration(create_legacy=True)
    assert await migration.start() is INIT
    assert migration.routes.report_place == REPORTS
    assert bed.dynamo.has_table(STATES.table)


@virtual
async def test_the_legacy_layout_is_refused_beside_a_single_table_in_use(bed):
    await bed.create(LEASES)
    bed.put_version(ClientVersion.V3X)
    with pytest.raises(StartupError, match=r"Remove mld\.metadataLayout"):
        await bed.migration(create_legacy=True).start()
    assert not bed.dynamo.has_table(STATES.table)


@virtual
async def test_a_missing_worker_metrics_table_is_reported(bed, caplog):
    await bed.create(LEASES, STATES)
    assert (await bed.started()).routes.report_place is None
    await bed.migration(create_legacy=True).start()
    assert bed.dynamo.has_table(REPORTS.table)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "app-WorkerMetricStats does not" in message


@virtual
async def test_a_legacy_table_that_appears_later_is_reported(bed, caplog):
    await bed.create(LEASES)
    migration = await bed.started()
    watching = asyncio.create_task(migration.watch())
    await bed.clock.sleep(3 * LATE_TABLE_PERIOD_S)
    assert not watching.done()
    await bed.create(STATES)
    await asyncio.wait_for(watching, LATE_TABLE_PERIOD_S + 1)
    assert migration.status is COMPLETE
    assert "mld.metadataLayout=legacy" in caplog.text


# --- table migration: what Java writes is followed

BY_FALSE = [(None, INIT), (INIT, INIT), (DEPLOYED, DEPLOYED), (PENDING, DEPLOYED), (DEPLOYED, DEPLOYED), (INIT, INIT)]
BY_TRUE = [(DEPLOYED, PENDING), (PENDING, PENDING), (DEPLOYED, PENDING), (None, PENDING), (PENDING, PENDING)]


async def deployed(bed: Bed, worker: str = "w-1") -> TableMigration:
    """A worker with migrate=true, in a fleet in DEPLOYED with its client version in the legacy table."""
    await bed.legacy()
    bed.put_status(DEPLOYED)
    bed.put_version(ClientVersion.V3X, STATES)
    return await bed.started(worker, migrate=True)


async def follower(bed: Bed, *, migrate: bool) -> TableMigration:
    if migrate:
        return await deployed(bed)
    await bed.legacy()
    return await bed.started()


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize(("migrate", "steps"), [(False, BY_FALSE), (True, BY_TRUE)])
@virtual
async def test_every_state_that_java_writes_is_followed_forward_and_back(bed, migrate, steps, leads):
    worker = await follower(bed, migrate=migrate)
    report_place = worker.routes.report_place
    for stored, status in steps:
        if stored is None:
            bed.dynamo.delete_row(STATES.table, "TableMigration3.5")
        else:
            bed.put_status(stored)
        await bed.clock.sleep(LEADER_CHECK_S)
        await worker.on_check(leads)
        assert worker.status is status
        assert worker.routes.lock_place == STATES
        assert worker.routes.read_places == (STATES, LEASES), "what Java has moved is found by the second look"
        assert worker.routes.report_read_places == (REPORTS, LEASES)
    bed.put_status(COMPLETE)
    await bed.clock.sleep(LEADER_CHECK_S)
    with pytest.raises(MigrationCompletedError):
        await worker.on_check(leads)
    assert worker.routes.read_places == worker.routes.report_read_places == (LEASES,)
    assert worker.routes.lock_place == LEASES
    assert worker.routes.report_place == report_place == (LEASES if migrate else REPORTS), "fixed at the start"
    await worker.on_check(leads)


@pytest.mark.parametrize(
    ("stored", "migrate"),
    [(None, False), (INIT, False), (DEPLOYED, False), (PENDING, False), (DEPLOYED, True), (PENDING, True)],
)
@virtual
async def test_a_leader_of_mld_moves_nothing_and_leaves_the_row_as_it_is(bed, stored, migrate):
    await bed.legacy()
    if stored:
        bed.put_status(stored)
    bed.put_version(ClientVersion.V3X, STATES)
    bed.put_lock("w-1")
    leader = await bed.started(migrate=migrate)
    for _ in range(26 * 6):  # longer than any bake of Java's
        await leader.on_check(True)
        await bed.clock.sleep(HOUR_S / 6)
    assert bed.dynamo.history == []
    assert bed.status is stored
    assert bed.stored(CLIENT_VERSION, STATES) is ClientVersion.V3X
    assert leader.routes.lock_place == STATES


@pytest.mark.parametrize(("migrate", "warnings"), [(True, 2), (False, 0)])
@virtual
async def test_a_leader_that_is_to_move_rows_says_once_that_the_move_rests(bed, caplog, migrate, warnings):
    worker = await follower(bed, migrate=migrate)
    for _ in range(2):
        await bed.lead(worker, 60)
        await worker.on_check(False)
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warnings
    assert all("until a Java worker of 3.5 leads" in message for message in messages)


@virtual
async def test_a_new_leader_that_cannot_read_the_row_must_not_lead(bed):
    leader = await deployed(bed)
    bed.dynamo.faults = lambda *_: lost_request()
    with pytest.raises(TableError):
        await leader.on_check(True)
    bed.dynamo.faults = None
    await bed.lead(leader, 10)
    bed.dynamo.faults = lambda *_: throttled()
    await bed.lead(leader, 20)  # a leader that has read it goes on for a while
    with pytest.raises(TableError):
        await bed.lead(leader, 60)


@virtual
async def test_a_leader_reads_the_row_every_few_seconds_only(bed):
    leader = await deployed(bed)
    before = len(bed.dynamo.calls)
    for _ in range(600):
        await leader.on_check(True)
        await bed.clock.sleep(0.1)
    assert len(bed.dynamo.calls) - before <= 13


@virtual
async def test_on_complete_the_legacy_lock_is_dropped_and_the_lock_of_the_lease_table_taken(bed):
    """With the real election: nobody leads twice at any moment, and all end up in the lease table."""
    await deployed(bed)
    workers = []
    for name in ("w-1", "w-2", "w-3"):
        migration = await bed.started(name, migrate=True)
        workers.append((migration, election_of(bed, name, migration)))
    places = set()
    while bed.clock.monotonic() < 600:
        leading = [migration for migration, election in workers if await election.is_leader()]
        assert len(leading) <= 1
        places |= {migration.routes.lock_place for migration in leading}
        if bed.clock.monotonic() == 300:
            bed.put_status(COMPLETE)
        await bed.clock.sleep(CHECK_S)
    assert len(leading) == 1
    assert places == {STATES, LEASES}
    assert [migration.status for migration, _ in workers] == [COMPLETE] * 3
    assert "Leader" not in bed.dynamo.rows(STATES.table)
    assert "Leader" in bed.dynamo.rows(LEASES.table)
    for _, election in workers:
        await election.close()


def election_of(bed: Bed, name: str, migration: TableMigration) -> LockElection:
    service = bed.dynamo.client(name)
    versions = itertools.count()
    return LockElection(
        lambda: LockTable(service, migration.routes.lock_place),
        bed.clock,
        worker_id=name,
        new_version=lambda: f"{name}-{next(versions)}",
        on_check=migration.on_check,
    )


# --- client versions


class Worker:
    """A worker's version machine over `bed`, and what it was told to run."""

    def __init__(self, bed: Bed, configured: Configured | None, name: str = "w-1", *, routes: TableMigration) -> None:
        self.bed = bed
        self.entered: list[ClientVersion] = []
        self.running: Components | None = None
        self.failures = 0
        self.leads = False
        self.view = FleetView(True, {"s1": "w-1"}, frozenset({"w-1"}))
        self.view_error: Exception | None = None
        self.machine = VersionMachine(
            StatesTable(bed.dynamo.client(name)),
            routes,
            bed.clock,
            random.Random(name),
            worker_id=name,
            configured=configured,
            lease_duration_s=10.0,
            is_leader=self._is_leader,
            view=self._view,
        )

    async def enter(self, version: ClientVersion, running: Components) -> None:
        if self.failures:
            self.failures -= 1
            raise AwsUnreachableError("UpdateTable", "nothing")
        self.entered.append(version)
        self.running = running

    async def _is_leader(self) -> bool:
        return self.leads

    async def _view(self) -> FleetView:
        if self.view_error is not None:
            raise self.view_error
        return self.view


async def single_table_worker(bed: Bed, configured: Configured | None, name: str = "w-1") -> Worker:
    await bed.create(LEASES)
    return Worker(bed, configured, name, routes=await bed.started(name))


async def running_worker(bed: Bed, configured: Configured | None, name: str = "w-1") -> Worker:
    worker = await single_table_worker(bed, configured, name)
    await worker.machine.start(worker.enter)
    bed.tasks = [*getattr(bed, "tasks", []), asyncio.create_task(worker.machine.run(worker.enter))]  # type: ignore[attr-defined]
    return worker


C3X = Configured.VERSION_3X
COMPATIBLE = Configured.COMPATIBLE_WITH_2X
PHASE1 = Configured.COMPATIBLE_WITH_2X_PHASE1
AS_2X = ClientVersion.INIT
UPGRADE = ClientVersion.UPGRADE_FROM_2X
V2X = ClientVersion.V2X
ROLLBACK = ClientVersion.V3X_WITH_ROLLBACK
V3X = ClientVersion.V3X


@pytest.mark.parametrize("configured", list(Configured))
@pytest.mark.parametrize("stored", [None, UPGRADE, V2X, ROLLBACK, V3X])
@virtual
async def test_what_is_entered_and_written_at_start(bed, configured, stored):
    worker = await single_table_worker(bed, configured)
    if stored:
        bed.put_version(stored)
    before = bed.dynamo.row(LEASES.table, "Migration3.0")
    version = await worker.machine.start(worker.enter)
    assert worker.entered == [version] == [worker.machine.version]
    wrote = (configured, stored) in {(COMPATIBLE, None), (C3X, None), (C3X, ROLLBACK)}
    if wrote:
        assert bed.stored(CLIENT_VERSION, LEASES) is version
    else:
        assert bed.dynamo.row(LEASES.table, "Migration3.0") == before


def put_leases(bed: Bed, counter: int, *, typed: bool = False) -> None:
    """As a worker makes and renews them: of KCL 2.x, or of 3.5."""
    row = {"leaseOwner": {"S": "w-2x"}, "leaseCounter": {"N": str(counter)}, "checkpoint": {"S": "TRIM_HORIZON"}}
    row |= {"entityType": {"S": "LEASE"}} if typed else {}
    for number in range(2):
        bed.dynamo.put_row(LEASES.table, {"leaseKey": {"S": f"shardId-{number}"}, **row})


async def renewing(bed: Bed, *, typed: bool = False) -> None:
    for counter in range(1, 1000):
        put_leases(bed, counter, typed=typed)
        await bed.clock.sleep(3)


@pytest.mark.parametrize("lives", [True, False])
@virtual
async def test_by_itself_a_worker_begins_as_2x_in_a_table_of_2x(bed, lives):
    worker = await single_table_worker(bed, None)
    put_leases(bed, 1)
    bed.tasks = [asyncio.create_task(renewing(bed))] if lives else []
    before = bed.clock.monotonic()
    assert await worker.machine.start(worker.enter) is AS_2X
    assert bed.clock.monotonic() == before, "whose the table is does not depend on who lives"
    assert bed.dynamo.row(LEASES.table, "Migration3.0") is None


@pytest.mark.parametrize(("configured", "typed"), [(C3X, False), (C3X, True)])
@virtual
async def test_3x_is_refused_beside_leases_that_move_in_a_bare_table(bed, configured, typed):
    worker = await single_table_worker(bed, configured)
    bed.tasks = [asyncio.create_task(renewing(bed, typed=typed))]
    await bed.clock.sleep(1)
    with pytest.raises(StartupError, match=r"rules of KCL 2\.x: w-2x\. .* remove clientVersionConfig"):
        await worker.machine.start(worker.enter)
    assert worker.entered == []
    assert bed.dynamo.row(LEASES.table, "Migration3.0") is None


@virtual
async def test_a_row_that_a_person_put_there_makes_no_fleet_of_3x(bed):
    worker = await single_table_worker(bed, None)
    put_leases(bed, 1)
    bed.dynamo.put_row(LEASES.table, {"leaseKey": {"S": "do not delete"}, "entityType": {"S": "NOTE"}})
    assert await worker.machine.start(worker.enter) is AS_2X


@virtual
async def test_3x_takes_over_a_table_of_2x_in_which_nothing_moves(bed):
    worker = await single_table_worker(bed, C3X)
    put_leases(bed, 7)
    assert await worker.machine.start(worker.enter) is V3X
    assert bed.clock.monotonic() >= 10.0
    assert bed.stored(CLIENT_VERSION, LEASES) is V3X


@pytest.mark.parametrize(("lives", "version"), [(True, AS_2X), (False, V3X)])
@virtual
async def test_a_bare_table_made_by_newer_workers_is_of_2x_while_they_live(bed, lives, version):
    worker = await single_table_worker(bed, None)
    put_leases(bed, 1, typed=True)
    bed.tasks = [asyncio.create_task(renewing(bed, typed=True))] if lives else []
    assert await worker.machine.start(worker.enter) is version


@virtual
async def test_a_fleet_that_has_just_begun_is_not_taken_for_one_of_2x(bed):
    """Its first worker had not written the row when the second one read it, and has leases when that one looks on."""
    worker = await single_table_worker(bed, C3X)
    bed.tasks = [asyncio.create_task(renewing(bed, typed=True))]
    await bed.clock.sleep(1)
    starting = asyncio.create_task(worker.machine.start(worker.enter))
    await bed.clock.sleep(5)
    bed.put_version(V3X)
    assert await starting is V3X


@virtual
async def test_who_began_as_2x_by_itself_follows_the_row_when_there_is_one(bed):
    worker = await single_table_worker(bed, None)
    put_leases(bed, 1)
    await worker.machine.start(worker.enter)
    bed.tasks = [asyncio.create_task(worker.machine.run(worker.enter))]
    bed.put_version(UPGRADE)
    await bed.clock.sleep(91)
    assert worker.entered == [AS_2X, UPGRADE]


@virtual
async def test_on_the_way_from_2x_all_other_rows_are_kept_out_of_its_table(bed):
    await bed.create(LEASES)
    put_leases(bed, 1)
    migration = bed.migration(client_version=COMPATIBLE)
    await migration.start()
    assert migration.routes.write_place == STATES
    worker = Worker(bed, COMPATIBLE, routes=migration)
    assert await worker.machine.start(worker.enter) is UPGRADE
    assert bed.stored(CLIENT_VERSION, STATES) is UPGRADE
    assert set(bed.dynamo.rows(LEASES.table)) == {"shardId-0", "shardId-1"}


@virtual
async def test_the_row_is_written_last(bed):
    worker = await single_table_worker(bed, C3X)
    worker.failures = 3
    starting = asyncio.create_task(worker.machine.start(worker.enter))
    await bed.clock.sleep(2)
    assert bed.dynamo.rows(LEASES.table) == {}, "a worker that does not come up decides nothing for the fleet"
    assert await starting is V3X
    assert bed.stored(CLIENT_VERSION, LEASES) is V3X


@virtual
async def test_a_start_gives_up_with_the_reason(bed):
    worker = await single_table_worker(bed, C3X)
    worker.failures = START_ATTEMPTS_MAX
    with pytest.raises(StartupError, match="UpdateTable: no answer: nothing"):
        await worker.machine.start(worker.enter)


@virtual
async def test_workers_of_a_new_application_start_together(bed):
    await bed.create(LEASES)
    workers = [await single_table_worker(bed, C3X, f"w-{number}") for number in range(10)]
    assert await asyncio.gather(*(worker.machine.start(worker.enter) for worker in workers)) == [V3X] * 10
    assert [worker.entered for worker in workers] == [[V3X]] * 10
    assert len(bed.dynamo.history) == 1


@virtual
async def test_on_a_lost_race_read_again_and_decide_anew(bed):
    worker = await single_table_worker(bed, C3X)

    async def slowly(version: ClientVersion, running: Components) -> None:
        await worker.enter(version, running)
        if version is V3X:
            bed.put_version(UPGRADE)

    assert await worker.machine.start(slowly) is UPGRADE
    assert worker.entered == [V3X, UPGRADE]
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE


@virtual
async def test_a_create_without_an_answer_is_our_own_when_read_again(bed):
    worker = await single_table_worker(bed, C3X)
    lost = [lost_reply("PutItem")]
    bed.dynamo.faults = lambda _, operation, __: lost.pop() if operation == "PutItem" and lost else None
    assert await worker.machine.start(worker.enter) is V3X
    assert worker.entered == [V3X]


@virtual
async def test_throttling_of_the_row_delays_the_start(bed):
    worker = await single_table_worker(bed, C3X)
    bed.dynamo.faults = lambda *_: throttled() if bed.clock.monotonic() < 5 else None
    assert await worker.machine.start(worker.enter) is V3X


@virtual
async def test_the_whole_fleet_flips_and_within_90_seconds(bed):
    workers = [await running_worker(bed, COMPATIBLE, f"w-{number}") for number in range(5)]
    workers[0].leads = True
    while bed.stored(CLIENT_VERSION, LEASES) is UPGRADE:
        await bed.clock.sleep(1)
    assert 660 <= bed.clock.monotonic() <= 720
    row = await bed.states.get(CLIENT_VERSION, LEASES)
    assert row is not None
    assert row.by == "w-0"
    assert [entry.state for entry in row.history] == [UPGRADE.value, ClientVersion.INIT.value]
    await bed.clock.sleep(90)
    assert [worker.machine.version for worker in workers] == [ROLLBACK] * 5


@virtual
async def test_only_the_leader_flips(bed):
    worker = await running_worker(bed, COMPATIBLE)
    await bed.clock.sleep(HOUR_S)
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE
    for _ in range(6):  # a leader of half the time never has ten minutes in a row
        worker.leads = not worker.leads
        await bed.clock.sleep(500)
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE


@virtual
async def test_an_owner_that_does_not_report_holds_the_fleet_up(bed):
    worker = await running_worker(bed, COMPATIBLE)
    worker.leads = True
    worker.view = replace(worker.view, reporting=frozenset())
    await bed.clock.sleep(HOUR_S)
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE
    worker.view_error = TableError("nothing")
    await bed.clock.sleep(HOUR_S)
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE


@virtual
async def test_follow_the_tools_rollback_and_rollforward(bed):
    workers = [await running_worker(bed, COMPATIBLE, f"w-{number}") for number in range(3)]
    for version in (ROLLBACK, V2X, UPGRADE, V2X, UPGRADE, ROLLBACK, V3X):
        bed.put_version(version)
        await bed.clock.sleep(91)
        assert {worker.machine.version for worker in workers} == {version}
        assert {worker.entered[-1] for worker in workers} == {version}
    await asyncio.gather(*bed.tasks)
    before = len(bed.dynamo.calls)
    await bed.clock.sleep(HOUR_S)
    assert len(bed.dynamo.calls) == before, "3X is final: nobody polls any more"


@virtual
async def test_a_transition_that_fails_is_tried_again_every_second(bed):
    worker = await running_worker(bed, COMPATIBLE)
    bed.put_version(ROLLBACK)
    worker.failures = 5
    while worker.failures == 5:
        await bed.clock.sleep(0.1)
    assert worker.machine.version is UPGRADE
    await bed.clock.sleep(5.1)
    assert worker.machine.version is ROLLBACK


@virtual
async def test_a_rollback_while_a_transition_fails_enters_the_old_state_anew(bed):
    worker = await running_worker(bed, COMPATIBLE)
    bed.put_version(ROLLBACK)
    worker.failures = 3
    while worker.failures == 3:
        await bed.clock.sleep(0.1)
    bed.put_version(UPGRADE)
    await bed.clock.sleep(5)
    assert worker.entered == [UPGRADE, UPGRADE], "what had half been entered is undone"


@virtual
async def test_an_unsupported_or_deleted_row_keeps_the_state(bed):
    worker = await running_worker(bed, COMPATIBLE)
    bed.dynamo.put_row(LEASES.table, {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_4X"}})
    await bed.clock.sleep(200)
    bed.dynamo.delete_row(LEASES.table, "Migration3.0")
    await bed.clock.sleep(200)
    bed.dynamo.faults = lambda *_: lost_request()
    await bed.clock.sleep(200)
    assert worker.entered == [UPGRADE]
    bed.dynamo.faults = None
    bed.put_version(V2X)
    await bed.clock.sleep(61)
    assert worker.machine.version is V2X


@virtual
async def test_a_phase_1_worker_stops_taking_after_the_flip_and_writes_nothing(bed):
    worker = await running_worker(bed, PHASE1)
    assert worker.running.taker
    for stored, takes in ((UPGRADE, True), (ROLLBACK, False), (V2X, True), (UPGRADE, True), (ROLLBACK, False)):
        bed.put_version(stored)
        await bed.clock.sleep(91)
        assert worker.running.taker == takes
        assert worker.machine.metrics.worker.left_behind == (None if takes else stored.value)
        assert worker.machine.version is ClientVersion.INIT
    bed.put_version(V3X)
    await bed.clock.sleep(91)
    assert not worker.running.taker
    assert bed.dynamo.history == []


@pytest.mark.parametrize(("stored", "configured", "version"), [(ROLLBACK, C3X, V3X), (None, COMPATIBLE, UPGRADE)])
@virtual
async def test_with_a_legacy_table_the_state_is_created_and_kept_there(bed, stored, configured, version):
    await bed.legacy()
    if stored:
        bed.put_version(stored, STATES)
    worker = Worker(bed, configured, routes=await bed.started())
    assert await worker.machine.start(worker.enter) is version
    assert bed.stored(CLIENT_VERSION, STATES) is version
    assert bed.dynamo.rows(LEASES.table) == {}


@virtual
async def test_a_row_already_moved_is_updated_where_it_is(bed):
    await bed.legacy()
    bed.put_status(DEPLOYED)
    bed.put_version(ROLLBACK, LEASES)
    routes = await bed.started()
    assert routes.routes.write_place == STATES
    worker = Worker(bed, C3X, routes=routes)
    assert await worker.machine.start(worker.enter) is V3X
    assert bed.stored(CLIENT_VERSION, LEASES) is V3X
    assert bed.stored(CLIENT_VERSION, STATES) is None


@virtual
async def test_a_fleet_of_3_5_in_phase_1_goes_on_in_its_one_table(bed):
    await bed.create(LEASES)
    put_leases(bed, 1, typed=True)
    migration = bed.migration(client_version=COMPATIBLE)
    await migration.start()
    assert await Worker(bed, COMPATIBLE, routes=migration).machine.start(_enter_nothing) is UPGRADE
    assert bed.stored(CLIENT_VERSION, LEASES) is UPGRADE


async def _enter_nothing(*_: object) -> None: ...


@pytest.mark.parametrize("configured", [None, PHASE1, COMPATIBLE])
@virtual
async def test_several_streams_have_no_list_in_a_table_of_2x(bed, configured):
    await bed.create(LEASES)
    migration = bed.migration(client_version=configured)
    several = settings_of(streamName="", mld__streams="clicks, orders")
    migration.settings = replace(several, fleet=migration.settings.fleet)
    await migration.start()
    put_leases(bed, 1)
    with pytest.raises(StartupError, match=r"KCL 2\.x has made"):
        await migration.start()


@virtual
async def test_a_table_that_2x_fills_meanwhile_gets_no_other_row(bed):
    worker = await single_table_worker(bed, COMPATIBLE)
    put_leases(bed, 1)
    with pytest.raises(StartupError, match="start this worker again"):
        await worker.machine.start(worker.enter)
    assert set(bed.dynamo.rows(LEASES.table)) == {"shardId-0", "shardId-1"}
