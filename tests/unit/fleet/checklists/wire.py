"""What goes over the wire in a checklist's story: every request with its time, and the tables of all versions."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from mld.leases.rows import Place
from tests.support.fleet import TABLE, Fleet, fleet
from tests.twins.dynamo import Applied, Fault, FaultChooser
from tests.virtual_time import run_virtual

LEASES = Place(TABLE, "leaseKey")
STATES = Place(f"{TABLE}-CoordinatorState", "key")
REPORTS = Place(f"{TABLE}-WorkerMetricStats", "wid")
INDEX = "LeaseOwnerToLeaseKeyIndex"
V3X = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}
COMPATIBLE = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"}
PHASE1 = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

Row = Mapping[str, Mapping[str, Any]]
Story = Callable[["Stage"], Coroutine[Any, Any, None]]


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
    def condition(self) -> str:
        return self._text("ConditionExpression")

    @property
    def update(self) -> str:
        return self._text("UpdateExpression")

    @property
    def key_condition(self) -> str:
        return self._text("KeyConditionExpression")

    def _text(self, name: str) -> str:
        """An expression with names and values in place of their placeholders."""
        text = str(self.params.get(name, ""))
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
        self.players: list[Any] = []

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def wall_ms(self, ago_s: float = 0.0) -> int:
        return int((self.clock.wall() - ago_s) * 1000)

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

    def plant_leases(self, *owners: str | None, typed: bool = True) -> list[str]:
        """A lease row for each shard, as 3.5 (or, untyped, an older version) made them."""
        keys = []
        for shard, owner in zip(self.world.shards(), owners, strict=True):
            row: dict[str, dict[str, Any]] = {
                "leaseKey": {"S": shard.shard_id},
                "leaseCounter": {"N": "0"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": "TRIM_HORIZON"},
                "checkpointSubSequenceNumber": {"N": "0"},
                "startingHashKey": {"S": str(shard.hash_range.start)},
                "endingHashKey": {"S": str(shard.hash_range.end)},
            }
            if typed:
                row["entityType"] = {"S": "LEASE"}
            if owner is not None:
                row["leaseOwner"] = {"S": owner}
            self.put(row)
            keys.append(shard.shard_id)
        return keys

    def plant_version(self, version: str, place: Place = LEASES, **more: Mapping[str, Any]) -> None:
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
                **more,
            },
            place,
        )

    def plant_status(self, status: str, ago_s: float = 0.0) -> None:
        """`TableMigration3.5` in the legacy coordinator table."""
        past = {"M": {"tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}, "mb": {"S": "java"}, "mts": {"N": "1784640000300"}}}
        self.put(
            {
                "key": {"S": "TableMigration3.5"},
                "entityType": {"S": "TABLE_MIGRATION"},
                "tm": {"S": f"TABLE_MIGRATION_STATUS_{status}"},
                "mb": {"S": "java"},
                "mts": {"N": str(self.wall_ms(ago_s))},
                "h": {"L": [past]},
            },
            STATES,
        )

    def version(self, place: Place = LEASES) -> str | None:
        text = self.text("Migration3.0", "cv", place)
        return None if text is None else text.removeprefix("CLIENT_VERSION_")

    def status(self) -> str | None:
        text = self.text("TableMigration3.5", "tm", STATES)
        return None if text is None else text.removeprefix("TABLE_MIGRATION_STATUS_")

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


@asynccontextmanager
async def stage(shard_count: int = 1, **keys: str) -> AsyncIterator[Stage]:
    async with fleet(shard_count, **keys) as world:
        on_stage = Stage(world)
        yield on_stage
        for player in on_stage.players:
            player.check()


def story(
    shard_count: int = 1, **keys: str
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a test of `async def test(stage, ...)`: virtual time, a stream of `shard_count` shards."""

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def main() -> None:
                async with stage(shard_count, **keys) as on_stage:
                    await test(on_stage, **arguments)

            run_virtual(main())

        parameters = list(inspect.signature(test).parameters.values())[1:]
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__module__ = test.__module__
        return run

    return decorate


def gaps(requests: list[Request]) -> list[float]:
    """Seconds between one request and the next."""
    times = [request.at for request in requests]
    return [later - earlier for earlier, later in itertools.pairwise(times)]
