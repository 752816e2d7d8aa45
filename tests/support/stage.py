"""A fleet seen from its tables: every request with its time, and rows and tables as other versions make them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mld.leases.rows import Place
from tests.support.fleet import TABLE, Fleet, fleet
from tests.twins.dynamo import Applied, Fault, FaultChooser
from tests.virtual_time import asked_of_pytest, virtual

LEASES = Place(TABLE, "leaseKey")
STATES = Place(f"{TABLE}-CoordinatorState", "key")
REPORTS = Place(f"{TABLE}-WorkerMetricStats", "wid")
INDEX = "LeaseOwnerToLeaseKeyIndex"
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
COMPATIBLE = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}
PHASE1 = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}

Row = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was sent, whatever became of it."""

    at: float
    sender: str
    operation: str
    params: Mapping[str, Any]

    @property
    def table(self) -> str:
        return str(self.params.get("TableName", ""))

    @property
    def key(self) -> str | None:
        """The hash key of the item it is about."""
        given = self.params.get("Key") or self.params.get("Item") or {}
        for name in ("leaseKey", "key", "wid"):
            if name in given:
                return str(given[name]["S"])
        return None

    @property
    def update(self) -> str:
        """The update expression with names and values in place of their placeholders."""
        text = str(self.params.get("UpdateExpression", ""))
        names = self.params.get("ExpressionAttributeNames", {})
        values = self.params.get("ExpressionAttributeValues", {})
        text = re.sub(r"#\w+", lambda found: names[found[0]], text)
        return re.sub(r":\w+", lambda found: str(next(iter(values[found[0]].values()))), text)


class Requests:
    """Everything that was asked of the service. `fault` decides the fate of requests, as `MemoryDynamo.faults` does."""

    def __init__(self, world: Fleet) -> None:
        self._world = world
        self.all: list[Request] = []
        self.fault: FaultChooser | None = None
        world.dynamo.faults = self._note

    def _note(self, sender: str, operation: str, params: Mapping[str, Any]) -> Fault | None:
        self.all.append(Request(self._world.clock.monotonic(), sender, operation, params))
        return None if self.fault is None else self.fault(sender, operation, params)

    def of(
        self,
        sender: str | None = None,
        operation: str | None = None,
        *,
        table: str | None = None,
        key: str | None = None,
        since: float = 0.0,
    ) -> list[Request]:
        wanted = ((sender, "sender"), (operation, "operation"), (table, "table"), (key, "key"))
        return [
            request
            for request in self.all
            if request.at >= since and all(value in (None, getattr(request, name)) for value, name in wanted)
        ]


class Stage:
    """A fleet's world, its requests, and ways to see and plant rows."""

    def __init__(self, world: Fleet) -> None:
        self.world = world
        self.clock = world.clock
        self.dynamo = world.dynamo
        self.requests = Requests(world)
        self.start = world.start
        self.advance = world.advance
        self.until = world.until

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    # --- tables

    async def create(self, *places: Place, index: bool = False) -> None:
        """As some other version made them; `index` gives the lease table its owner index."""
        for place in places:
            names = ("leaseOwner", "leaseKey") if index and place == LEASES else (place.key,)
            params: dict[str, Any] = {
                "TableName": place.table,
                "KeySchema": [{"AttributeName": place.key, "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in names],
                "BillingMode": "PAY_PER_REQUEST",
            }
            if len(names) == 2:
                schema = [
                    {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                    {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                ]
                projection = {"ProjectionType": "KEYS_ONLY"}
                params["GlobalSecondaryIndexes"] = [{"IndexName": INDEX, "KeySchema": schema, "Projection": projection}]
            await self.dynamo.call("CreateTable", params)

    async def legacy(self) -> None:
        """The layout of 3.0 to 3.4."""
        await self.create(LEASES, STATES, REPORTS, index=True)

    # --- rows

    def row(self, key: str, place: Place = LEASES) -> dict[str, Any] | None:
        row: dict[str, Any] | None = self.dynamo.row(place.table, key) if self.dynamo.has_table(place.table) else None
        return row

    def text(self, key: str, name: str, place: Place = LEASES) -> str | None:
        """An S or N attribute of a row; None if either is absent."""
        value = (self.row(key, place) or {}).get(name, {})
        text: str | None = value.get("S", value.get("N"))
        return text

    def put(self, row: Row, place: Place = LEASES) -> None:
        """As another program wrote it."""
        self.dynamo.put_row(place.table, row)

    def leases(self) -> dict[str, dict[str, Any]]:
        if not self.dynamo.has_table(TABLE):
            return {}
        return {key: row for key, row in self.dynamo.rows(TABLE).items() if "leaseCounter" in row}

    def owners(self) -> dict[str, str | None]:
        return {key: row.get("leaseOwner", {}).get("S") for key, row in self.leases().items()}

    def owned_by(self, worker: str) -> list[str]:
        """Leases whose owner is `worker`, nobody else finishing them."""
        return sorted(
            key
            for key, row in self.leases().items()
            if row.get("leaseOwner") == {"S": worker} and "checkpointOwner" not in row
        )

    def plant_leases(self, *owners: str | None) -> list[str]:
        """A lease row for each shard, as 3.5 made them."""
        keys = []
        for shard, owner in zip(self.world.shards(), owners, strict=True):
            row: dict[str, dict[str, Any]] = {
                "leaseKey": {"S": shard.shard_id},
                "entityType": {"S": "LEASE"},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": "TRIM_HORIZON"},
                "checkpointSubSequenceNumber": {"N": "0"},
                "startingHashKey": {"S": str(shard.hash_range.start)},
                "endingHashKey": {"S": str(shard.hash_range.end)},
            }
            if owner is not None:
                row["leaseOwner"] = {"S": owner}
            self.put(row)
            keys.append(shard.shard_id)
        return keys

    def plant_version(self, version: str, place: Place = LEASES) -> None:
        """`Migration3.0` as Java or its migration tool leaves it."""
        entity = {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}} if place == LEASES else {}
        past = {"M": {"cv": {"S": "CLIENT_VERSION_INIT"}, "mb": {"S": "java"}, "mts": {"N": "1784640000101"}}}
        self.put(
            {
                place.key: {"S": "Migration3.0"},
                **entity,
                "cv": {"S": f"CLIENT_VERSION_{version}"},
                "mb": {"S": "java"},
                "mts": {"N": "1784640000123"},
                "h": {"L": [past]},
            },
            place,
        )

    def leader(self, place: Place = LEASES) -> str | None:
        return self.text("Leader", "ownerName", place)

    def history(self, key: str, place: Place = LEASES, since: float = 0.0) -> list[Applied]:
        """The accepted writes of one item, in their order."""
        return [
            applied
            for applied in self.dynamo.history
            if applied.at >= since
            and applied.table == place.table
            and (applied.after or applied.before)[place.key] == {"S": key}
        ]


def story(shard_count: int = 1, **keys: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A test that runs in virtual time and is given a fleet with its tables as `stage`."""

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @virtual
        async def run(**asked: Any) -> None:
            async with fleet(shard_count, **keys) as world:
                await test(Stage(world), **asked)

        return asked_of_pytest(test, run, "stage")

    return decorate
