"""Java workers as the tables see them, played from the specification: rows and conditions as it shows them.

They are not KCL: each player does what one side of a checklist needs, in Java's periods and with Java's blind spots,
and nothing of it uses a codec of ours.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from mld.errors import AwsError
from mld.fleet.values import Place
from tests.support.fleet import TABLE
from tests.unit.fleet.checklists.wire import INDEX, LEASES, Stage

REPORT_S = 30.0
DISCOVERY_S = 9.975
RENEW_S = 3.308
LAM_S = 20.0
LEASE_S = 10.0
HEARTBEAT_S = 30.0
LOCK_S = 120.0
HANDOFF_TIMEOUT_S = 30.0
_uuids = itertools.count(1)

_NAME = re.compile(r"(?<![:#\w])[a-z]\w*(?![\w(])")

Item = dict[str, Any]


class Player:
    """A process: its door to DynamoDB, and its loops."""

    def __init__(self, on: Stage, worker_id: str) -> None:
        self.on = on
        self.worker_id = worker_id
        self._door = on.dynamo.client(worker_id)
        self._tasks: list[asyncio.Task[None]] = []
        on.players.append(self)

    def check(self) -> None:
        """Raises what ended one of its loops: a Java worker would have failed at that."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def crash(self) -> None:
        """Nothing more is sent; nothing is cleaned up."""
        for task in self._tasks:
            task.cancel()

    def _run(self, *loops: Any) -> None:
        self._tasks += [asyncio.create_task(loop) for loop in loops]

    async def _call(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self._door.call(operation, _with_placeholders(params))

    async def _write(self, operation: str, place: Place, params: dict[str, Any]) -> Item | None:
        """The item as it is afterwards ({} if it was deleted or put), None if the condition did not hold."""
        try:
            answer = await self._call(operation, {"TableName": place.table, **params})
        except AwsError as error:
            if error.code != "ConditionalCheckFailedException":
                raise
            return None
        return answer.get("Attributes", {})

    async def _get(self, key: str, place: Place = LEASES, *, consistent: bool = False) -> Item | None:
        params = {"TableName": place.table, "Key": {place.key: {"S": key}}, "ConsistentRead": consistent}
        item: Item | None = (await self._call("GetItem", params)).get("Item")
        return item

    async def _scan(self, table: str = TABLE) -> list[Item]:
        items: list[Item] = (await self._call("Scan", {"TableName": table}))["Items"]
        return items

    # --- lease writes (leases#conditional-writes)

    async def assign(self, row: Item, new: str) -> Item | None:
        """The regular update."""
        condition = ["leaseKey = :k"]
        values: dict[str, Any] = {":k": row["leaseKey"], ":new": {"S": new}, ":one": {"N": "1"}}
        for name in ("leaseOwner", "checkpointOwner"):
            if name in row:
                condition.append(f"{name} = :{name}")
                values[f":{name}"] = row[name]
            else:
                condition.append(f"attribute_not_exists({name})")
        owner = row.get("leaseOwner", {}).get("S")
        switches = owner not in (None, new) or row.get("checkpointOwner") == {"S": new}
        update = "SET leaseOwner = :new REMOVE checkpointOwner ADD leaseCounter :one"
        return await self._update(
            row["leaseKey"],
            " AND ".join(condition),
            update + (", ownerSwitchesSinceCheckpoint :one" if switches else ""),
            values,
        )

    async def begin_handoff(self, row: Item, new: str) -> Item | None:
        """The graceful update."""
        return await self._update(
            row["leaseKey"],
            "leaseKey = :k AND leaseOwner = :old AND attribute_not_exists(checkpointOwner)",
            "SET leaseOwner = :new, checkpointOwner = :old",
            {":k": row["leaseKey"], ":old": row["leaseOwner"], ":new": {"S": new}},
        )

    async def _update(self, key: Item, condition: str, update: str, values: dict[str, Any]) -> Item | None:
        params = {
            "Key": {"leaseKey": key},
            "ConditionExpression": condition,
            "UpdateExpression": update,
            "ExpressionAttributeValues": values,
            "ReturnValues": "ALL_NEW",
        }
        return await self._write("UpdateItem", LEASES, params)


def _with_placeholders(params: dict[str, Any]) -> dict[str, Any]:
    """Attribute names in expressions as `#name`, which the twin demands."""
    names = dict(params.get("ExpressionAttributeNames", {}))

    def placeholder(found: re.Match[str]) -> str:
        names["#" + found[0]] = found[0]
        return "#" + found[0]

    changed = {name: _NAME.sub(placeholder, text) for name, text in params.items() if name.endswith("Expression")}
    return params | changed | ({"ExpressionAttributeNames": names} if names else {})


@dataclass
class Held:
    counter: int
    handoff: bool = False


class JavaWorker(Player):
    """A worker of 3.x that does not lead: reports, discovers by the index, renews, hands off."""

    def __init__(
        self,
        on: Stage,
        worker_id: str,
        *,
        reports_at: Place = LEASES,
        supports_single_table: bool = True,
        cpu: tuple[str, ...] | None = None,
        clock_ahead_s: float = 0.0,
        finish_s: float = 1.0,
    ) -> None:
        super().__init__(on, worker_id)
        self.reports_at = reports_at
        self.supports_single_table = supports_single_table
        self.cpu = cpu
        self.clock_ahead_s = clock_ahead_s
        self.finish_s = finish_s
        self.held: dict[str, Held] = {}
        self.renewals = 0
        self._finishing: set[asyncio.Task[None]] = set()

    def start(self) -> JavaWorker:
        self._run(self._report_forever(), self._discover_forever(), self._renew_forever())
        return self

    async def report(self) -> None:
        now = {"N": str(int(self.on.clock.wall() + self.clock_ahead_s))}
        values: dict[str, Any] = {":lut": now, ":sts": {"M": {}}, ":opr": {"M": {}}}
        if self.cpu is not None:
            values[":sts"] = {"M": {"C": {"L": [{"N": value} for value in self.cpu]}}}
            values[":opr"] = {"M": {"C": {"L": [{"N": "100"}]}}}
        names = ["sts", "opr", "lut"]
        if self.supports_single_table:
            names += ["entityType", "sup", "slu"]
            values |= {":entityType": {"S": "WORKER_METRIC_STATS"}, ":sup": {"N": "1"}, ":slu": now}
        update = "SET " + ", ".join(f"{name} = :{name}" for name in names)
        params = {
            "Key": {self.reports_at.key: {"S": self.worker_id}},
            "UpdateExpression": update,
            "ExpressionAttributeValues": values,
        }
        await self._write("UpdateItem", self.reports_at, params)

    async def _report_forever(self) -> None:
        while True:
            await self.report()
            await asyncio.sleep(REPORT_S)

    async def _discover_forever(self) -> None:
        while True:
            for key in await self._keys_by_index():
                if key not in self.held:
                    row = await self._get(key)
                    if row and row.get("leaseOwner") == {"S": self.worker_id} and "checkpointOwner" not in row:
                        self.held[key] = Held(int(row["leaseCounter"]["N"]))
            await asyncio.sleep(DISCOVERY_S)

    async def _keys_by_index(self) -> list[str]:
        params = {
            "TableName": TABLE,
            "IndexName": INDEX,
            "KeyConditionExpression": "leaseOwner = :w",
            "ExpressionAttributeValues": {":w": {"S": self.worker_id}},
        }
        try:
            return [item["leaseKey"]["S"] for item in (await self._call("Query", params))["Items"]]
        except AwsError:
            return []  # no table, no index yet: the next tick

    async def _renew_forever(self) -> None:
        while True:
            for key in list(self.held):
                await self._renew(key)
            await asyncio.sleep(RENEW_S)

    async def _renew(self, key: str) -> None:
        held = self.held[key]
        guard = "" if held.handoff else " AND attribute_not_exists(checkpointOwner)"
        values = {":n": {"N": str(held.counter)}, ":next": {"N": str(held.counter + 1)}}
        row = await self._update({"S": key}, f"leaseCounter = :n{guard}", "SET leaseCounter = :next", values)
        if row is not None:
            held.counter += 1
            self.renewals += 1
            return
        row = await self._get(key, consistent=True)
        if not held.handoff and row and row.get("checkpointOwner") == {"S": self.worker_id}:
            held.handoff = True
            await self._renew(key)
            task = asyncio.create_task(self._finish(key))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
        else:
            del self.held[key]

    async def _finish(self, key: str) -> None:
        """The processor is shut down, then the lease goes to the next owner."""
        await asyncio.sleep(self.finish_s)
        row = await self._get(key, consistent=True)
        if row and row.get("checkpointOwner") == {"S": self.worker_id} and "leaseOwner" in row:
            await self.assign(row, row["leaseOwner"]["S"])
        self.held.pop(key, None)

    def crash(self) -> None:
        super().crash()
        for task in self._finishing:
            task.cancel()


class JavaLeader(JavaWorker):
    """A worker of 3.x that competes for the lock, and assigns by count while it has it, if `assigns`."""

    def __init__(
        self, on: Stage, worker_id: str, *, lock_at: Place = LEASES, assigns: bool = True, **more: Any
    ) -> None:
        super().__init__(on, worker_id, **more)
        self.lock_at = lock_at
        self.assigns = assigns
        self.leads = False
        self.led_since: float | None = None
        self.version = ""
        self._seen: tuple[str, float, float] | None = None
        self._moved: dict[str, tuple[int, float]] = {}

    def start(self) -> JavaLeader:
        super().start()
        self._run(self._lead_forever())
        if self.assigns:
            self._run(self._assign_forever())
        return self

    async def _lead_forever(self) -> None:
        while True:
            if self.leads:
                await self.heartbeat()
            else:
                await self.compete()
            await asyncio.sleep(HEARTBEAT_S)

    def _lock_row(self) -> Item:
        self.version = f"{next(_uuids):08x}-0b0e-4b6e-9a55-6d6a0c8f4f10"
        return {
            self.lock_at.key: {"S": "Leader"},
            "entityType": {"S": "LEADER"},
            "ownerName": {"S": self.worker_id},
            "leaseDuration": {"S": "120000"},
            "recordVersionNumber": {"S": self.version},
        }

    async def compete(self) -> None:
        row = await self._get("Leader", self.lock_at, consistent=True)
        now = self.on.now
        params: dict[str, Any]
        if row is None:
            params = {
                "ConditionExpression": "attribute_not_exists(#pk)",
                "ExpressionAttributeNames": {"#pk": self.lock_at.key},
            }
        else:
            # Any of the three missing or of another type: NullPointerException or NumberFormatException.
            version, duration_s = row["recordVersionNumber"]["S"], int(row["leaseDuration"]["S"]) / 1000
            assert row["ownerName"]["S"]
            if self._seen is None or self._seen[0] != version:
                self._seen = (version, now, duration_s)
            if now - self._seen[1] <= self._seen[2]:
                return
            params = {
                "ConditionExpression": "attribute_exists(#pk) AND #rvn = :seen",
                "ExpressionAttributeNames": {"#pk": self.lock_at.key, "#rvn": "recordVersionNumber"},
                "ExpressionAttributeValues": {":seen": {"S": version}},
            }
        if await self._write("PutItem", self.lock_at, {"Item": self._lock_row(), **params}) is not None:
            self.leads = True
            self.led_since = now

    async def heartbeat(self) -> None:
        mine = self.version
        version = self._lock_row()["recordVersionNumber"]
        params = {
            "Key": {self.lock_at.key: {"S": "Leader"}},
            "ConditionExpression": "attribute_exists(#pk) AND recordVersionNumber = :mine AND ownerName = :me",
            "UpdateExpression": "SET leaseDuration = :d, recordVersionNumber = :v",
            "ExpressionAttributeNames": {"#pk": self.lock_at.key},
            "ExpressionAttributeValues": {
                ":mine": {"S": mine},
                ":me": {"S": self.worker_id},
                ":d": {"S": "120000"},
                ":v": version,
            },
        }
        if await self._write("UpdateItem", self.lock_at, params) is None:
            self.leads = False

    async def _assign_forever(self) -> None:
        while True:
            if self.leads:
                await self.assign_once()
            else:
                self._moved = {}
            await asyncio.sleep(LAM_S)

    async def assign_once(self) -> None:
        """A run with the count decider: expired and free leases first, then one move from the richest."""
        rows = await self._scan()
        now, wall = self.on.now, self.on.clock.wall()
        workers = [row["leaseKey"]["S"] for row in rows if self._is_active(row, wall)]
        leases = [row for row in rows if row.get("entityType", {"S": "LEASE"}) == {"S": "LEASE"}]
        counts = Counter(dict.fromkeys(workers, 0))
        free = []
        for row in leases:
            key, counter = row["leaseKey"]["S"], int(row["leaseCounter"]["N"])
            owner = row.get("checkpointOwner", row.get("leaseOwner", {})).get("S")
            before = self._moved.get(key)
            if before is None or counter > before[0]:
                self._moved[key] = (counter, -math.inf if before is None and owner is None else now)
            if owner is None or now - self._moved[key][1] > LEASE_S:
                free.append(row)
            elif owner in counts:
                counts[owner] += 1
        for row in free:
            if workers:
                poorest = min(workers, key=lambda worker: (counts[worker], worker))
                if (done := await self.assign(row, poorest)) is not None:
                    self._moved[row["leaseKey"]["S"]] = (int(done["leaseCounter"]["N"]), now)
                counts[poorest] += 1
        if len(workers) > 1:
            rich, poor = max(workers, key=lambda w: counts[w]), min(workers, key=lambda w: counts[w])
            movable = [
                row
                for row in leases
                if row not in free and row.get("leaseOwner") == {"S": rich} and "checkpointOwner" not in row
            ]
            if counts[rich] - counts[poor] > 1 and movable:
                await self.begin_handoff(movable[0], poor)

    @staticmethod
    def _is_active(row: Item, wall: float) -> bool:
        if row.get("entityType") != {"S": "WORKER_METRIC_STATS"} or wall - int(row["lut"]["N"]) > 2 * REPORT_S:
            return False
        samples, ranges = row["sts"]["M"], row["opr"]["M"]
        assert bool(samples) is bool(ranges), "valid, not default, and above every other worker (2.5)"
        return all(float(values["L"][-1]["N"]) != -1 for values in samples.values())


class Java2xWorker(Player):
    """A worker of 2.x: takes leases, renews by counter alone, and stops working at a row that is no lease."""

    def __init__(self, on: Stage, worker_id: str) -> None:
        super().__init__(on, worker_id)
        self.held: dict[str, int] = {}
        self.broken: str | None = None
        self._moved: dict[str, tuple[int, float]] = {}

    def start(self) -> Java2xWorker:
        self._run(self._take_forever(), self._renew_forever())
        return self

    async def _take_forever(self) -> None:
        while True:
            if self.on.dynamo.has_table(TABLE):
                await self.take_once()
            await asyncio.sleep(LAM_S)

    async def take_once(self) -> None:
        rows = await self._scan()
        for row in rows:
            if "leaseCounter" not in row or "ownerSwitchesSinceCheckpoint" not in row:
                self.broken = f"NullPointerException at {row}"
                return
        now = self.on.now
        expired = []
        for row in rows:
            key, counter = row["leaseKey"]["S"], int(row["leaseCounter"]["N"])
            if self._moved.get(key, (None, 0.0))[0] != counter:
                self._moved[key] = (counter, now)
            if "leaseOwner" not in row or now - self._moved[key][1] > LEASE_S:
                expired.append(row)
        counts = Counter(row["leaseOwner"]["S"] for row in rows if "leaseOwner" in row and row not in expired)
        counts[self.worker_id] += 0
        target = math.ceil(len(rows) / len(counts))
        wants = target - counts[self.worker_id]
        chosen = expired[: max(0, wants)]
        if wants > 0 and not expired:
            richest, count = counts.most_common(1)[0]
            if count > target or (count == target and wants > 1):
                chosen = [row for row in rows if row.get("leaseOwner") == {"S": richest}][:1]
        for row in chosen:
            await self._take(row)

    async def _take(self, row: Item) -> None:
        counter = int(row["leaseCounter"]["N"])
        values = {":n": {"N": str(counter)}, ":next": {"N": str(counter + 1)}, ":me": {"S": self.worker_id}}
        update = "SET leaseCounter = :next, leaseOwner = :me"
        if "leaseOwner" in row:
            update += " ADD ownerSwitchesSinceCheckpoint :one"
            values[":one"] = {"N": "1"}
        if await self._update(row["leaseKey"], "leaseCounter = :n", update, values) is not None:
            self.held[row["leaseKey"]["S"]] = counter + 1

    async def _renew_forever(self) -> None:
        while True:
            for key, counter in list(self.held.items()):
                values = {":n": {"N": str(counter)}, ":next": {"N": str(counter + 1)}}
                if await self._update({"S": key}, "leaseCounter = :n", "SET leaseCounter = :next", values) is None:
                    del self.held[key]
                else:
                    self.held[key] = counter + 1
            await asyncio.sleep(RENEW_S)


class MigrationTool(Player):
    """KclMigrationTool: writes `Migration3.0` conditionally; after a rollback it deletes the index (and, up to 3.4,
    the metrics table)."""

    async def rollback(self, place: Place = LEASES) -> bool:
        held = "cv = :a OR cv = :b"
        values = {":a": {"S": "CLIENT_VERSION_UPGRADE_FROM_2X"}, ":b": {"S": "CLIENT_VERSION_3X_WITH_ROLLBACK"}}
        return await self._set(place, held, values, "CLIENT_VERSION_2X", "KclMigrationTool-rollback")

    async def roll_forward(self, place: Place = LEASES) -> bool:
        values = {":a": {"S": "CLIENT_VERSION_2X"}}
        return await self._set(
            place, "cv = :a", values, "CLIENT_VERSION_UPGRADE_FROM_2X", "KclMigrationTool-rollforward"
        )

    async def delete_index(self) -> None:
        updates = [{"Delete": {"IndexName": INDEX}}]
        await self._call("UpdateTable", {"TableName": TABLE, "GlobalSecondaryIndexUpdates": updates})

    async def delete_table(self, place: Place) -> None:
        await self._call("DeleteTable", {"TableName": place.table})

    async def _set(self, place: Place, condition: str, values: Item, version: str, by: str) -> bool:
        params = {
            "Key": {place.key: {"S": "Migration3.0"}},
            "ConditionExpression": condition,
            "UpdateExpression": "SET cv = :new, mb = :by, mts = :at",
            "ExpressionAttributeValues": {
                **values,
                ":new": {"S": version},
                ":by": {"S": by},
                ":at": {"N": str(self.on.wall_ms())},
            },
        }
        return await self._write("UpdateItem", place, params) is not None
