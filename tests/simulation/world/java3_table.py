"""The tables as a Java 3.x worker sees them: lease rows with handoffs, the owner index, other rows. Part of `java3`.

Rules: leases#conditional-writes, leases#what-java-does-differently, coordination#rows-and-tables. Written from a
description of Java alone; what 3.x shares with 2.x comes from the model of that one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields, replace
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import AwsError
from tests.simulation.world.java2_table import (
    NEVER,
    REQUEST_TIMEOUT_S,
    TROUBLE,
    CorruptRow,
    Item,
    Lease,
    Renewer,
    Rows,
    read_row,
)

INDEX = "LeaseOwnerToLeaseKeyIndex"
REFUSED = "ConditionalCheckFailedException"
MISSING = "ResourceNotFoundException"
RENEWALS_PER_LEASE = 3
RECORD_BYTES = 16
"""Near enough: what a record of the world's producers weighs."""


@dataclass(eq=False, slots=True)
class Lease3(Lease):
    checkpoint_owner: str | None = None
    kbps: float | None = None

    @property
    def actual_owner(self) -> str | None:
        return self.checkpoint_owner or self.owner

    @property
    def is_pending(self) -> bool:
        return self.checkpoint_owner is not None


def is_lease_row(row: Item) -> bool:
    return bool(row.get("entityType", {"S": "LEASE"})["S"] == "LEASE")


def read_row3(row: Item) -> Lease3:
    base = read_row(row)
    lease = Lease3(**{one.name: getattr(base, one.name) for one in fields(Lease)})
    lease.checkpoint_owner = row.get("checkpointOwner", {}).get("S")
    if "throughputKBps" in row:
        lease.kbps = float(row["throughputKBps"]["N"])
    return lease


class Rows3(Rows):
    """`tagged`: a worker of 3.5, which writes and heeds `entityType`. Older ones choke on any row that is no lease."""

    take_ends_handoffs = True
    tagged = True

    async def ask(self, operation: str, **params: Any) -> dict[str, Any]:
        """Any request; `TableName` may name another table."""
        return await self._send(operation, **params)

    async def try_write(self, operation: str, **params: Any) -> bool:
        """False: the condition did not hold."""
        return await self._write(operation, **params)

    async def transact(self, steps: list[Item]) -> None:
        await self._dynamo.call("TransactWriteItems", {"TransactItems": steps}, timeout_s=REQUEST_TIMEOUT_S)

    async def scan(self, **params: Any) -> list[Item]:
        answer = await self._send("Scan", **params)
        items: list[Item] = list(answer["Items"])
        while "LastEvaluatedKey" in answer:
            answer = await self._send("Scan", ExclusiveStartKey=answer["LastEvaluatedKey"], **params)
            items += answer["Items"]
        return items

    async def is_empty(self) -> bool:
        if not self.tagged:
            return await super().is_empty()
        return not any(is_lease_row(item) for item in await self.scan())

    async def all(self) -> list[Lease]:
        """listLeases: before 3.5 one row that is no sound lease fails it."""
        items = await self.scan()
        return [read_row3(item) for item in items] if not self.tagged else list(_sound(items))

    async def everything(self) -> tuple[list[Lease3], list[Item]]:
        """The parallel scan, which survives bad rows in every version: leases, and the other rows."""
        items = await self.scan()
        return _sound(items), [item for item in items if not is_lease_row(item)]

    async def get(self, key: str) -> Lease3 | None:
        answer = await self._send("GetItem", Key={"leaseKey": {"S": key}}, ConsistentRead=False)
        row = answer.get("Item")
        if not row or (self.tagged and not is_lease_row(row)):
            return None
        return read_row3(row)

    async def create(self, row: Item) -> bool:
        return await super().create(row | {"entityType": {"S": "LEASE"}} if self.tagged else row)

    async def renew(self, lease: Lease3, kbps: float | None) -> Item | None:
        """None: renewed. Else the row that refused, {} if there is none."""
        is_known = lease.is_pending
        sets: Item = {"leaseCounter": {"N": str(lease.counter + 1)}}
        if kbps is not None:
            sets["throughputKBps"] = {"N": f"{kbps:.6f}"}
        names = {"#n": "leaseCounter", "#c": "checkpointOwner"} | {f"#s{i}": name for i, name in enumerate(sets)}
        values = {":n": {"N": str(lease.counter)}} | {f":s{i}": value for i, value in enumerate(sets.values())}
        if is_known:
            del names["#c"]
        try:
            await self._send(
                "UpdateItem",
                Key={"leaseKey": {"S": lease.key}},
                ConditionExpression="#n = :n" + ("" if is_known else " AND attribute_not_exists(#c)"),
                UpdateExpression="SET " + ", ".join(f"#s{i} = :s{i}" for i in range(len(sets))),
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except AwsError as error:
            if error.code != REFUSED:
                raise
            return dict(error.item or {})
        return None

    async def begin_handoff(self, lease: Lease3, to: str) -> bool:
        """The counter is left alone on purpose."""
        assert lease.owner is not None
        return await self.try_write(
            "UpdateItem",
            Key={"leaseKey": {"S": lease.key}},
            ConditionExpression="#k = :k AND #o = :old AND attribute_not_exists(#c)",
            UpdateExpression="SET #o = :new, #c = :old",
            ExpressionAttributeNames={"#k": "leaseKey", "#o": "leaseOwner", "#c": "checkpointOwner"},
            ExpressionAttributeValues={":k": {"S": lease.key}, ":old": {"S": lease.owner}, ":new": {"S": to}},
        )

    async def assign(self, lease: Lease3, to: str) -> int | None:
        """The new counter; None if the owners are others than those seen."""
        values: Item = {":k": {"S": lease.key}, ":new": {"S": to}, ":one": {"N": "1"}}
        conditions = ["#k = :k"]
        for alias, seen in (("o", lease.owner), ("c", lease.checkpoint_owner)):
            if seen is None:
                conditions.append(f"attribute_not_exists(#{alias})")
            else:
                conditions.append(f"#{alias} = :{alias}")
                values[f":{alias}"] = {"S": seen}
        names = {"#k": "leaseKey", "#o": "leaseOwner", "#c": "checkpointOwner", "#n": "leaseCounter"}
        switches = (lease.owner is not None and lease.owner != to) or lease.checkpoint_owner == to
        if switches:
            names["#w"] = "ownerSwitchesSinceCheckpoint"
        try:
            answer = await self._send(
                "UpdateItem",
                Key={"leaseKey": {"S": lease.key}},
                ConditionExpression=" AND ".join(conditions),
                UpdateExpression="SET #o = :new REMOVE #c ADD #n :one" + (", #w :one" if switches else ""),
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                ReturnValues="ALL_NEW",
            )
        except AwsError as error:
            if error.code != REFUSED:
                raise
            return None
        return int(answer["Attributes"]["leaseCounter"]["N"])

    # --- the index ----------------------------------------------------------------------------------------------------

    async def index_status(self) -> str | None:
        table = (await self._send("DescribeTable"))["Table"]
        found = [index for index in table.get("GlobalSecondaryIndexes", ()) if index["IndexName"] == INDEX]
        return str(found[0].get("IndexStatus", "ACTIVE")) if found else None

    async def create_index(self) -> None:
        parts = (("leaseOwner", "HASH"), ("leaseKey", "RANGE"))
        try:
            await self._send(
                "UpdateTable",
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name, _ in parts],
                GlobalSecondaryIndexUpdates=[
                    {
                        "Create": {
                            "IndexName": INDEX,
                            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in parts],
                            "Projection": {"ProjectionType": "KEYS_ONLY"},
                        }
                    }
                ],
            )
        except AwsError as error:
            if error.code not in ("ResourceInUseException", "ValidationException", "LimitExceededException"):
                raise

    async def keys_of(self, worker: str) -> list[str]:
        params: dict[str, Any] = {
            "IndexName": INDEX,
            "KeyConditionExpression": "#o = :o",
            "ExpressionAttributeNames": {"#o": "leaseOwner"},
            "ExpressionAttributeValues": {":o": {"S": worker}},
        }
        answer = await self._send("Query", **params)
        keys = [item["leaseKey"]["S"] for item in answer["Items"]]
        while "LastEvaluatedKey" in answer:
            answer = await self._send("Query", ExclusiveStartKey=answer["LastEvaluatedKey"], **params)
            keys += [item["leaseKey"]["S"] for item in answer["Items"]]
        return keys


def _sound(items: list[Item]) -> list[Lease3]:
    leases = []
    for item in items:
        if is_lease_row(item):
            try:
                leases.append(read_row3(item))
            except CorruptRow:
                continue
    return leases


class Renewer3(Renewer):
    """`on_renewed` hears, after each tick, of every lease whose handoff is known."""

    def __init__(self, rows: Rows3, clock: Clock, lease_s: float) -> None:
        super().__init__(rows, clock, lease_s)
        self._rows3 = rows
        self._period_s = lease_s / RENEWALS_PER_LEASE
        self._bytes: dict[str, float] = {}
        self._averages: dict[str, float] = {}
        self.on_handoff: Any = lambda lease: None

    def delivered(self, key: str, records: int) -> None:
        self._bytes[key] = self._bytes.get(key, 0.0) + records * RECORD_BYTES

    def forget(self, key: str) -> None:
        """dropLease."""
        self.owned.pop(key, None)
        self._bytes.pop(key, None)
        self._averages.pop(key, None)

    def add(self, leases: list[Any]) -> None:
        super().add(leases)
        for lease in leases:
            if lease.kbps is not None:
                self._bytes[lease.key] = lease.kbps * 1024  # the flaw: a period's bytes are more

    async def readopt(self, me: str) -> None:
        """3.x: rows in a handoff are left alone."""
        try:
            leases, _ = await self._rows3.everything()
            kept: list[Lease] = []
            for lease in leases:
                if lease.owner == me and not lease.is_pending and await self._renew(lease, although_expired=True):
                    kept.append(lease)
            self.add(kept)
        except TROUBLE:
            pass

    async def _renew_one(self, lease: Lease) -> None:
        await super()._renew_one(lease)
        if isinstance(lease, Lease3) and lease.is_pending:
            self.on_handoff(lease)

    async def _renew(self, lease: Lease, although_expired: bool = False) -> bool:
        assert isinstance(lease, Lease3)
        async with lease.lock:
            if not although_expired and lease.is_expired(self._clock.monotonic(), self._lease_s):
                return False
            if lease.is_pending and lease.checkpoint_owner == lease.owner:
                return False
            if not await self._send(lease, None if although_expired else self._sample(lease.key)):
                return False
            lease.counter += 1
            lease.moved_at = self._clock.monotonic()  # the flaw: after the response
            return True

    async def _send(self, lease: Lease3, kbps: float | None) -> bool:
        """Without a known handoff it renews on the counter and learns of one from the refusal, then renews again."""
        refused_by = await self._rows3.renew(lease, kbps)
        if refused_by is None:
            return True
        me = lease.actual_owner
        if not lease.is_pending:
            row = await self._row_behind(refused_by, lease.key)
            if row is not None and row.is_pending:
                if row.actual_owner != me or row.checkpoint_owner == row.owner:
                    return False
                lease.checkpoint_owner, lease.owner = row.checkpoint_owner, row.owner
                return await self._send(lease, kbps)
        row = await self._rows3.get(lease.key)  # perhaps our own request, sent twice by the SDK
        return row is not None and row.owner == me and row.counter == lease.counter + 1

    async def _row_behind(self, refused_by: Item, key: str) -> Lease3 | None:
        return read_row3(refused_by) if refused_by else await self._rows3.get(key)

    def _sample(self, key: str) -> float | None:
        if key not in self._bytes:
            return self._averages.get(key)
        now = self._bytes[key] / 1024 / self._period_s
        self._bytes[key] = 0.0
        before = self._averages.get(key)
        self._averages[key] = now if before is None else (now + before) / 2
        return round(self._averages[key], 6)


def fresh(lease: Lease3, now: float) -> Lease3:
    """As discovery accepts it: the moment of reading counts for a heartbeat."""
    return replace(lease, moved_at=now, token=None, lock=asyncio.Lock())


__all__ = ["NEVER", "Lease3", "Renewer3", "Rows3", "fresh", "is_lease_row", "read_row3"]
