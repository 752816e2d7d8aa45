"""Where the rows of a fleet live and in which mode it is, as a Java 3.x worker follows it. Part of `java3`.

Rules: coordination#table-layout and the section on modes and migrations. Written from a description of Java alone,
flaws included.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from mld.core.errors import AwsError
from tests.simulation.world.java2_table import TROUBLE, InvalidState, Item
from tests.simulation.world.java3_lam import SUPPORT_EXPIRES_S, Report
from tests.simulation.world.java3_lock import LOCK_KEY, MigrationCompleted, Place
from tests.simulation.world.java3_table import MISSING, Lease3

if TYPE_CHECKING:
    from tests.simulation.world.java3 import JavaWorker3

INIT, DEPLOYED, PENDING, COMPLETE = (f"TABLE_MIGRATION_STATUS_{n}" for n in ("INIT", "DEPLOYED", "PENDING", "COMPLETE"))
TABLE_ROW, VERSION_ROW = "TableMigration3.5", "Migration3.0"
INIT_BAKE_S = 3600.0
CHUNK = 25
HISTORY_MAX = 10
TABLE_POLL_S, TABLE_POLLS_MAX = 10.0, 60
MONITOR_S, MONITOR_JITTER_S = 60.0, 30.0
READY_S = 600.0
CV = "CLIENT_VERSION_"
V_INIT, UPGRADE, V2X, ROLLBACK, V3X = (
    CV + name for name in ("INIT", "UPGRADE_FROM_2X", "2X", "3X_WITH_ROLLBACK", "3X")
)
START_STATES = {
    "PHASE1": {None: V_INIT, V3X: V3X},
    "COMPATIBLE_WITH_2X": {None: UPGRADE, V3X: V3X},
    "3X": {None: V3X, ROLLBACK: V3X, V3X: V3X},
}


def history(row: Item, name: str) -> list[dict[str, Any]]:
    """The newest first, the row as it is among them."""
    now = {"M": {key: row[key] for key in (name, "mb", "mts")}}
    return [now, *row.get("h", {"L": []})["L"]][:HISTORY_MAX]


class Tables:
    """Routing, and the migration to a single table. A worker before 3.5 knows the legacy tables only."""

    def __init__(self, worker: JavaWorker3, table: str, *, migrate: bool, complete_bake_s: float) -> None:
        self._worker = worker
        self._leases: Place = (table, "leaseKey")
        self._coordinator: Place = (f"{table}-CoordinatorState", "key")
        self._reports: Place = (f"{table}-WorkerMetricStats", "wid")
        self._migrate = migrate
        self._bake_s = complete_bake_s
        self.status = self.cached = COMPLETE if worker.rows.tagged else INIT
        self._has_reports = True
        self._summary: tuple[int, bool, int] | None = None
        """Lowest support code of the owners, whether all of them report, and live reports in the legacy table."""
        self._move: asyncio.Task[None] | None = None
        self._moved = False

    async def initialize(self) -> None:
        if not self._worker.rows.tagged:
            for place in (self._coordinator, self._reports):
                await self._ensure(place)
            return
        if not await self._exists(self._coordinator[0]):
            self.status = self.cached = COMPLETE
            return
        self.status = self.cached = self._local(await self._row(), at_start=True)
        self._has_reports = await self._exists(self._reports[0])

    async def _exists(self, table: str) -> bool:
        try:
            await self._worker.rows.ask("DescribeTable", TableName=table)
        except AwsError as error:
            if error.code != MISSING:
                raise
            return False
        return True

    async def _ensure(self, place: Place) -> None:
        rows = self._worker.rows
        if await self._exists(place[0]):
            return
        try:
            await rows.ask(
                "CreateTable",
                TableName=place[0],
                AttributeDefinitions=[{"AttributeName": place[1], "AttributeType": "S"}],
                KeySchema=[{"AttributeName": place[1], "KeyType": "HASH"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except AwsError as error:
            if error.code != "ResourceInUseException":
                raise

    # --- routing ------------------------------------------------------------------------------------------------------

    def lock_place(self) -> Place:
        return self._leases if self.status == COMPLETE else self._coordinator

    def write_place(self) -> Place:
        return self._leases if self.cached in (COMPLETE, PENDING) else self._coordinator

    def report_place(self) -> Place:
        return self._leases if self.cached in (COMPLETE, PENDING) else self._reports

    def read_places(self) -> list[Place]:
        if not self._worker.rows.tagged:
            return [self._coordinator]
        return [self._leases] if self.status == COMPLETE else [self._coordinator, self._leases]

    def legacy_reports(self) -> str | None:
        return None if self.status == COMPLETE or not self._has_reports else self._reports[0]

    # --- the hook of the leader decider -------------------------------------------------------------------------------

    async def _row(self) -> Item | None:
        answer = await self._worker.rows.ask(
            "GetItem", TableName=self._coordinator[0], Key={"key": {"S": TABLE_ROW}}, ConsistentRead=True
        )
        return answer.get("Item") or None

    def _local(self, row: Item | None, *, at_start: bool) -> str:
        stored = row["tm"]["S"] if row is not None else None
        if stored in (None, INIT):
            if self._migrate and at_start:
                raise InvalidState("the fleet is not ready for a single table")
            return INIT
        if stored == COMPLETE:
            return COMPLETE
        return PENDING if self._migrate else DEPLOYED

    def summarise(self, leases: list[Lease3], reports: list[Report], wall: float) -> None:
        if self.status == COMPLETE or not self._worker.rows.tagged:
            return
        owners = {lease.owner for lease in leases if lease.owner is not None}
        codes = []
        for owner in owners:
            mine = [r for r in reports if r.worker == owner]
            newest = max(mine, key=lambda r: r.support_at or 0, default=None)
            fresh = newest is not None and newest.support_at is not None
            fresh = fresh and newest is not None and wall - (newest.support_at or 0) <= SUPPORT_EXPIRES_S
            codes.append(newest.support or 0 if fresh and newest is not None else 0)
        reporting = {r.worker for r in reports}
        self._summary = (min(codes, default=0), owners <= reporting, sum(r.legacy for r in reports))

    async def hook(self, leads: bool) -> None:
        """Raises TROUBLE, or MigrationCompleted."""
        if self.status == COMPLETE or not self._worker.rows.tagged:
            return
        row = await self._row()
        self.status = self._local(row, at_start=False)
        if self.status == COMPLETE:
            raise MigrationCompleted
        if leads:
            await self._lead(row)

    async def _lead(self, row: Item | None) -> None:
        code, all_report, legacy = self._summary or (0, False, 1)
        stored = row["tm"]["S"] if row is not None else None
        if self.status == INIT:
            if code < 1:
                if row is not None:
                    await self._worker.rows.ask(
                        "DeleteItem", TableName=self._coordinator[0], Key={"key": {"S": TABLE_ROW}}
                    )
            elif row is None:
                await self._put(INIT, None)
            elif stored == INIT and self._age_s(row) >= INIT_BAKE_S:
                await self._put(DEPLOYED, row)
                self.status = DEPLOYED
            return
        if self.status == DEPLOYED:
            if stored == PENDING:
                await self._put(DEPLOYED, row)
            return
        is_met = all_report and legacy == 0
        if row is None:
            await self._put(DEPLOYED, None)
        elif stored == DEPLOYED:
            if not is_met:
                self._cancel_move()
            elif self._moved and await self._is_legacy_empty():
                await self._put(PENDING, row)
            elif self._move is None or self._move.done():
                self._move = self._worker.spawn(self._move_rows())
        elif not is_met or not await self._is_legacy_empty():
            self._cancel_move()
            await self._put(DEPLOYED, row)
        elif self._age_s(row) >= self._bake_s:
            await self._finalize(row)

    def _cancel_move(self) -> None:
        self._moved = False
        if self._move is not None:
            self._move.cancel()
            self._move = None

    def _age_s(self, row: Item) -> float:
        return self._worker.clock.wall() - int(row["mts"]["N"]) / 1000

    def _state(self, name: str, value: str, row: Item | None, key: str) -> Item:
        now = {"N": str(int(self._worker.clock.wall() * 1000))}
        me = {"S": self._worker.worker_id}
        first = [{"M": {name: {"S": INIT if name == "tm" else V_INIT}, "mb": me, "mts": now}}]
        return {
            key: {"S": TABLE_ROW if name == "tm" else VERSION_ROW},
            name: {"S": value},
            "mb": me,
            "mts": now,
            "h": {"L": first if row is None else history(row, name)},
        }

    async def _put(self, status: str, row: Item | None) -> bool:
        return await self.write_state("tm", status, row, self._coordinator)

    async def write_state(self, name: str, value: str, row: Item | None, place: Place) -> bool:
        """Create if absent, else change if it still is as read."""
        new = self._state(name, value, row, place[1])
        rows = self._worker.rows
        if row is None:
            kind = "TABLE_MIGRATION" if name == "tm" else "CLIENT_VERSION_MIGRATION"
            item = new | ({"entityType": {"S": kind}} if rows.tagged else {})
            return await rows.try_write(
                "PutItem",
                TableName=place[0],
                Item=item,
                ConditionExpression="attribute_not_exists(#k)",
                ExpressionAttributeNames={"#k": place[1]},
            )
        key = new.pop(place[1])
        return await rows.try_write(
            "UpdateItem",
            TableName=place[0],
            Key={place[1]: key},
            ConditionExpression="#k = :k AND #v = :before",
            UpdateExpression="SET #v = :v, #mb = :mb, #mts = :mts, #h = :h",
            ExpressionAttributeNames={"#k": place[1], "#v": name, "#mb": "mb", "#mts": "mts", "#h": "h"},
            ExpressionAttributeValues={
                ":k": key,
                ":before": row[name],
                ":v": new[name],
                ":mb": new["mb"],
                ":mts": new["mts"],
                ":h": new["h"],
            },
        )

    async def _is_legacy_empty(self) -> bool:
        rows = await self._worker.rows.scan(TableName=self._coordinator[0], ConsistentRead=True)
        return {row["key"]["S"] for row in rows} <= {LOCK_KEY, TABLE_ROW}

    def _check(self) -> dict[str, Any]:
        return {
            "ConditionCheck": {
                "TableName": self._coordinator[0],
                "Key": {"key": {"S": LOCK_KEY}},
                "ConditionExpression": "#o = :me",
                "ExpressionAttributeNames": {"#o": "ownerName"},
                "ExpressionAttributeValues": {":me": {"S": self._worker.worker_id}},
            }
        }

    async def _move_rows(self) -> None:
        rows = self._worker.rows
        try:
            items = await rows.scan(TableName=self._coordinator[0], ConsistentRead=True)
            items = [item for item in items if item["key"]["S"] not in (LOCK_KEY, TABLE_ROW)]
            for start in range(0, len(items), CHUNK):
                steps = [self._check()]
                for item in items[start : start + CHUNK]:
                    new = {name: value for name, value in item.items() if name != "key"} | {"leaseKey": item["key"]}
                    if "cv" in new:
                        new["entityType"] = {"S": "CLIENT_VERSION_MIGRATION"}
                    put = {
                        "TableName": self._leases[0],
                        "Item": new,
                        "ConditionExpression": "attribute_not_exists(#k)",
                        "ExpressionAttributeNames": {"#k": "leaseKey"},
                    }
                    steps += [
                        {"Put": put},
                        {"Delete": {"TableName": self._coordinator[0], "Key": {"key": item["key"]}}},
                    ]
                await rows.transact(steps)
            self._moved = True
        except TROUBLE:
            pass

    async def _finalize(self, row: Item) -> None:
        legacy = self._state("tm", COMPLETE, row, "key") | {"entityType": {"S": "TABLE_MIGRATION"}}
        copy = {name: value for name, value in legacy.items() if name != "key"} | {"leaseKey": legacy["key"]}
        await self._worker.rows.transact(
            [
                self._check(),
                {
                    "Put": {
                        "TableName": self._leases[0],
                        "Item": copy,
                        "ConditionExpression": "attribute_not_exists(#k)",
                        "ExpressionAttributeNames": {"#k": "leaseKey"},
                    }
                },
                {
                    "Put": {
                        "TableName": self._coordinator[0],
                        "Item": legacy,
                        "ConditionExpression": "#t = :p",
                        "ExpressionAttributeNames": {"#t": "tm"},
                        "ExpressionAttributeValues": {":p": {"S": PENDING}},
                    }
                },
            ]
        )
        self.status = COMPLETE
        raise MigrationCompleted


class Versions:
    """The client version machine (coordination#client-versions). `state` is what the worker has entered."""

    def __init__(self, worker: JavaWorker3, config: str) -> None:
        self._worker = worker
        self._config = config
        self.state: str | None = None
        self._target: str | None = None
        self._ready_since: float | None = None

    async def read(self) -> tuple[Item | None, Place]:
        tables = self._worker.tables
        for place in tables.read_places():
            answer = await self._worker.rows.ask(
                "GetItem", TableName=place[0], Key={place[1]: {"S": VERSION_ROW}}, ConsistentRead=True
            )
            if answer.get("Item"):
                return answer["Item"], place
        return None, tables.write_place()

    async def initialize(self) -> None:
        """The flaw of 3.5: whoever loses the race to write the row never tries again, and dies of it."""
        if self._target is not None and self._worker.rows.tagged:
            if self.state is None:
                raise InvalidState("no leader decider")
            return
        row, place = await self.read()
        stored = row["cv"]["S"] if row is not None else None
        target = START_STATES[self._config].get(stored, stored)
        assert target is not None
        self._target = target
        if stored != target and target != V_INIT:
            written = await self._worker.tables.write_state("cv", target, row, place)
            if not written:
                if self._worker.rows.tagged:
                    raise InvalidState("lost the race for the client version")
                row, _ = await self.read()
                target = row["cv"]["S"] if row is not None else target
        await self._worker.enter(target)
        self.state = target

    async def monitor(self) -> None:
        """Only in the states that may change."""
        worker = self._worker
        await worker.clock.sleep(MONITOR_S + worker.rng.uniform(0.0, MONITOR_JITTER_S))
        while self.state in (UPGRADE, V2X, ROLLBACK):
            try:
                row, place = await self.read()
                stored = row["cv"]["S"] if row is not None else self.state
                if stored != self.state and stored in (UPGRADE, V2X, ROLLBACK, V3X):
                    self.state = stored
                    self._ready_since = None
                    await worker.enter(stored)
                elif self.state == UPGRADE and row is not None and await self._may_flip():
                    await worker.tables.write_state("cv", ROLLBACK, row, place)
            except (*TROUBLE, KeyError, ValueError):
                pass
            await worker.clock.sleep(MONITOR_S)

    async def _may_flip(self) -> bool:
        worker = self._worker
        now = worker.clock.monotonic()
        if not await worker.is_leader() or not await self._is_ready():
            self._ready_since = None
            return False
        if self._ready_since is None:
            self._ready_since = now
        return now - self._ready_since >= READY_S

    async def _is_ready(self) -> bool:
        worker = self._worker
        if await worker.rows.index_status() != "ACTIVE":
            return False
        leases, _ = await worker.rows.everything()
        owners = {lease.owner for lease in leases}
        return owners <= await worker.reporting()
