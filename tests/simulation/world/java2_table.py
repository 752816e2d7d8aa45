"""The lease table as a Java 2.x worker sees it: rows, its taker's choice, its renewer. Part of `java2`.

Rules: leases#row-attributes and leases#what-java-does-differently. Written from a description of Java alone, like all
of `java2`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError
from mld.core.positions import Position

EPSILON_S = 0.025
VERY_OLD_FACTOR = 3
RENEWALS_AT_ONCE = 5
"""The pool never grows beyond a quarter of its 20 threads."""
REQUEST_TIMEOUT_S = 60.0
SDK_ATTEMPTS = 3
SDK_READ_TIMEOUT_S = 30.0
SDK_BACKOFF_MAX_S = 0.1
TABLE_POLL_S, TABLE_POLLS_MAX = 10.0, 60

END = "SHARD_END"
NEVER = -math.inf
Item = dict[str, dict[str, Any]]


class CorruptRow(Exception):
    """2.x readers give up a whole listing for one such row."""


class CheckpointRefused(Exception):
    """ShutdownException: the lease is not held any more, or the row's counter has moved."""


class InvalidState(Exception):
    """The end of a shard cannot be recorded by this holder."""


class Exit(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


TROUBLE = (AwsError, AwsUnreachableError, CorruptRow)
"""What leaves a table call without an answer. (A refused condition is an answer.)"""


@dataclass(eq=False, slots=True)
class Lease:
    """A row, and when its counter was last seen to move: by the taker, or by the holder's own write."""

    key: str
    counter: int = 0
    owner: str | None = None
    switches: int = 0
    checkpoint: str = "TRIM_HORIZON"
    sub: int = 0
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    hash_range: tuple[str, str] | None = None
    moved_at: float = NEVER
    token: object = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_expired(self, now: float, lease_s: float) -> bool:
        return now - self.moved_at > lease_s

    def is_available(self, now: float, lease_s: float) -> bool:
        return self.owner is None or self.is_expired(now, lease_s)


def read_row(row: Item) -> Lease:
    try:
        key, start, end = row["leaseKey"]["S"], _text(row, "startingHashKey"), _text(row, "endingHashKey")
        if start and end and int(start) >= int(end):
            raise CorruptRow(f"{key}: hash range")
        return Lease(
            key=key,
            counter=int(row["leaseCounter"]["N"]),
            owner=_text(row, "leaseOwner"),
            switches=int(row["ownerSwitchesSinceCheckpoint"]["N"]),
            checkpoint=row["checkpoint"]["S"],
            sub=int(row.get("checkpointSubSequenceNumber", {"N": "0"})["N"]),
            parents=tuple(sorted(row.get("parentShardId", {}).get("SS", ()))),
            children=tuple(sorted(row.get("childShardIds", {}).get("SS", ()))),
            hash_range=(start, end) if start and end else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptRow(repr(row)) from error


def _text(row: Item, name: str) -> str | None:
    return row[name]["S"] if name in row and row[name].get("S") else None


def new_row(key: str, checkpoint: str, parents: Sequence[str], start: int, end: int) -> Item:
    return {
        "leaseKey": {"S": key},
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": checkpoint},
        "checkpointSubSequenceNumber": {"N": "0"},
        "startingHashKey": {"S": str(start)},
        "endingHashKey": {"S": str(end)},
    } | ({"parentShardId": {"SS": sorted(parents)}} if parents else {})


def choose(
    me: str, leases: list[Lease], now: float, *, lease_s: float, steals_max: int, rng: Random, priority: bool = True
) -> tuple[list[Lease], list[Lease]]:
    """What a taker takes and what it steals (leases#taker-target and those after it)."""
    available = [lease for lease in leases if lease.is_available(now, lease_s)]
    counts = {me: 0}
    for lease in leases:
        if lease.owner is not None and not lease.is_available(now, lease_s):
            counts[lease.owner] = counts.get(lease.owner, 0) + 1
    very_old = [lease for lease in leases if lease.moved_at < now - VERY_OLD_FACTOR * lease_s]
    if priority and very_old:
        return rng.sample(very_old, len(very_old)), []
    target = 1 if len(counts) >= len(leases) else -(-len(leases) // len(counts))
    needed = target - counts[me]
    if needed <= 0 or not leases:
        return [], []
    if available:
        return rng.sample(available, min(needed, len(available))), []
    victim, most = max(counts.items(), key=lambda pair: pair[1])
    if most < target:
        return [], []
    steals = min(needed, most - target)
    if needed > 1 and steals == 0:
        steals = 1
    theirs = [lease for lease in leases if lease.owner == victim]
    return [], rng.sample(theirs, min(steals, steals_max, len(theirs)))


class Rows:
    """The lease table through the Java SDK, which sends a request again when it gets no answer."""

    def __init__(self, dynamo: Service, clock: Clock, rng: Random, table: str) -> None:
        self._dynamo = dynamo
        self._clock = clock
        self._rng = rng
        self._table = table

    async def _send(self, operation: str, **params: Any) -> dict[str, Any]:
        give_up_at = self._clock.monotonic() + REQUEST_TIMEOUT_S
        for attempt in range(1, SDK_ATTEMPTS + 1):
            left_s = give_up_at - self._clock.monotonic()
            try:
                return await self._dynamo.call(
                    operation, {"TableName": self._table, **params}, timeout_s=min(left_s, SDK_READ_TIMEOUT_S)
                )
            except (AwsError, AwsUnreachableError) as error:
                final = isinstance(error, AwsError) and error.status < 500 and not _is_throttling(error)
                if final or attempt == SDK_ATTEMPTS or self._clock.monotonic() >= give_up_at:
                    raise
            await self._clock.sleep(self._rng.uniform(0.0, SDK_BACKOFF_MAX_S * 2**attempt))
        raise AssertionError("unreachable")

    async def _write(self, operation: str, **params: Any) -> bool:
        """False: the condition did not hold."""
        try:
            await self._send(operation, **params)
        except AwsError as error:
            if error.code != "ConditionalCheckFailedException":
                raise
            return False
        return True

    async def ensure_table(self) -> None:
        try:
            await self._send("DescribeTable")
        except (AwsError, AwsUnreachableError):
            try:
                await self._send(
                    "CreateTable",
                    AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
                    KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            except AwsError as error:
                if error.code != "ResourceInUseException":
                    raise
        for _ in range(TABLE_POLLS_MAX):
            try:
                if (await self._send("DescribeTable"))["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"):
                    return
            except AwsError as error:
                if error.code != "ResourceNotFoundException":
                    raise
            await self._clock.sleep(TABLE_POLL_S)
        raise AwsUnreachableError("DescribeTable", "the table does not become active")

    async def is_empty(self) -> bool:
        return not [read_row(item) for item in (await self._send("Scan", Limit=1))["Items"]]

    async def all(self) -> list[Lease]:
        answer = await self._send("Scan")
        items = answer["Items"]
        while "LastEvaluatedKey" in answer:
            answer = await self._send("Scan", ExclusiveStartKey=answer["LastEvaluatedKey"])
            items = items + answer["Items"]
        return [read_row(item) for item in items]

    async def get(self, key: str) -> Lease | None:
        answer = await self._send("GetItem", Key={"leaseKey": {"S": key}}, ConsistentRead=False)
        return read_row(answer["Item"]) if answer.get("Item") else None

    async def create(self, row: Item) -> bool:
        absent = {"ConditionExpression": "attribute_not_exists(#k)", "ExpressionAttributeNames": {"#k": "leaseKey"}}
        return await self._write("PutItem", Item=row, **absent)

    async def update(self, key: str, counter: int | None, sets: Item, rest: str = "", **names: str) -> bool:
        """With a counter: conditional on it, and one is added. Without: conditional on the row's existence only."""
        condition, values = "#key = :key", {":key": {"S": key}}
        aliases = {"#key": "leaseKey", **{f"#{alias}": name for alias, name in names.items()}}
        if counter is not None:
            condition, values = "#n = :n", {":n": {"N": str(counter)}}
            aliases = {"#n": "leaseCounter", **{f"#{alias}": name for alias, name in names.items()}}
            sets = {"leaseCounter": {"N": str(counter + 1)}, **sets}
        if ":one" in rest:
            values[":one"] = {"N": "1"}
        aliases |= {f"#s{i}": name for i, name in enumerate(sets)}
        values |= {f":s{i}": value for i, value in enumerate(sets.values())}
        return await self._write(
            "UpdateItem",
            Key={"leaseKey": {"S": key}},
            ConditionExpression=condition,
            UpdateExpression="SET " + ", ".join(f"#s{i} = :s{i}" for i in range(len(sets))) + rest,
            ExpressionAttributeNames=aliases,
            ExpressionAttributeValues=values,
        )

    async def set_children(self, key: str, children: Sequence[str]) -> None:
        await self.update(key, None, {"childShardIds": {"SS": sorted(children)}})

    take_ends_handoffs = False
    """Whether a take removes `checkpointOwner`, as from 3.0 on."""

    async def take(self, lease: Lease, me: str) -> bool:
        """Whoever holds it, whoever `checkpointOwner` may be."""
        moved = lease.owner is not None and lease.owner != me
        names = {"sw": "ownerSwitchesSinceCheckpoint"} if moved else {}
        rest = " ADD #sw :one" if moved else ""
        if self.take_ends_handoffs:
            rest, names = " REMOVE #co" + rest, names | {"co": "checkpointOwner"}
        if not await self.update(lease.key, lease.counter, {"leaseOwner": {"S": me}}, rest, **names):
            return False
        lease.counter, lease.owner, lease.switches = lease.counter + 1, me, lease.switches + moved
        return True

    async def checkpoint(self, lease: Lease, position: Position) -> bool:
        sets: Item = {
            "checkpoint": {"S": position.sequence},
            "checkpointSubSequenceNumber": {"N": str(position.sub)},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        }
        if lease.children:
            sets["childShardIds"] = {"SS": list(lease.children)}
        if lease.hash_range is not None:
            sets["startingHashKey"], sets["endingHashKey"] = ({"S": key} for key in lease.hash_range)
        pending = {
            "p1": "pendingCheckpoint",
            "p2": "pendingCheckpointSubSequenceNumber",
            "p3": "pendingCheckpointState",
        }
        return await self.update(lease.key, lease.counter, sets, " REMOVE #p1, #p2, #p3", **pending)

    async def delete(self, key: str) -> None:
        await self._send("DeleteItem", Key={"leaseKey": {"S": key}})


def _is_throttling(error: AwsError) -> bool:
    return "Throttl" in error.code or error.code in ("ProvisionedThroughputExceededException", "RequestLimitExceeded")


class Renewer:
    """The leases this worker believes it holds, and their renewals and checkpoints."""

    def __init__(self, rows: Rows, clock: Clock, lease_s: float) -> None:
        self.owned: dict[str, Lease] = {}
        self._rows = rows
        self._clock = clock
        self._lease_s = lease_s
        self._pool = asyncio.Semaphore(RENEWALS_AT_ONCE)

    def held(self) -> list[Lease]:
        now = self._clock.monotonic()
        return [lease for lease in self.owned.values() if not lease.is_expired(now, self._lease_s)]

    def add(self, leases: list[Lease]) -> None:
        for lease in leases:
            self.owned[lease.key] = replace(lease, token=object(), lock=asyncio.Lock())

    async def readopt(self, me: str) -> None:
        """Rows of an earlier life under the same name: all of them, or none and no start if anything goes wrong."""
        mine = [lease for lease in await self._rows.all() if lease.owner == me]
        self.add([lease for lease in mine if await self._renew(lease, although_expired=True)])

    async def tick(self) -> None:
        await asyncio.gather(*(self._renew_one(self.owned[key]) for key in sorted(self.owned, reverse=True)))

    async def _renew_one(self, lease: Lease) -> None:
        async with self._pool:
            try:
                if not await self._renew(lease):
                    self.owned.pop(lease.key, None)
            except TROUBLE:
                pass  # unknown: kept until it expires here

    async def _renew(self, lease: Lease, although_expired: bool = False) -> bool:
        async with lease.lock:
            if not although_expired and lease.is_expired(self._clock.monotonic(), self._lease_s):
                return False
            renewed = await self._rows.update(lease.key, lease.counter, {})
            if not renewed:  # perhaps our own request, sent twice by the SDK
                row = await self._rows.get(lease.key)
                renewed = row is not None and row.owner == lease.owner and row.counter == lease.counter + 1
            if renewed:
                lease.counter += 1
                lease.moved_at = self._clock.monotonic()  # the flaw: after the response
            return renewed

    async def checkpoint(self, key: str, token: object, position: Position) -> None:
        """Raises CheckpointRefused, and what leaves the outcome unknown."""
        lease = self.owned.get(key)
        if lease is None or lease.token is not token or lease.is_expired(self._clock.monotonic(), self._lease_s):
            raise CheckpointRefused(key)
        async with lease.lock:
            if not await self._rows.checkpoint(lease, position):
                if self.owned.get(key) is lease:
                    del self.owned[key]
                raise CheckpointRefused(key)
            lease.counter, lease.switches = lease.counter + 1, 0
            lease.checkpoint, lease.sub = position.sequence, position.sub
            lease.moved_at = self._clock.monotonic()
