"""Who leads, as a Java 3.x worker decides it: the lock client, and the shuffle of 2.x. Part of `java3`.

Rules: coordination#leader-lock. Written from a description of Java alone, flaws included: a lost race puts the loser to
sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError
from tests.simulation.world.java2_table import TROUBLE
from tests.simulation.world.java3_table import REFUSED, Rows3

LOCK_KEY = "Leader"
LEASE_S, HEARTBEAT_S = 120.0, 30.0
SEED = 1947
FIRST_ELECTION_S, ELECTION_S = 60.0, 300.0
Place = tuple[str, str]
"""A table and the name of its key."""


class MigrationCompleted(Exception):
    """The hook's: the lock lives elsewhere from now on."""


class LockDecider:
    """`place` names the table of the lock now; `hook` is called with every answer that cost a request."""

    def __init__(
        self,
        me: str,
        rows: Rows3,
        clock: Clock,
        rng: Random,
        *,
        place: Callable[[], Place],
        tagged: bool,
        hook: Callable[[bool], Awaitable[None]],
        spawn: Callable[[Any], Any],
    ) -> None:
        self._me = me
        self._rows = rows
        self._clock = clock
        self._rng = rng
        self._place = place
        self._tagged = tagged
        self._hook = hook
        self._spawn = spawn
        self._mine: tuple[Place, str, float] | None = None
        """Where, which version, and the moment before its last successful write."""
        self._seen: tuple[Place, str, float, float] | None = None
        """Where, which version, since when, and for how long it is good."""
        self._no_until = float("-inf")
        self._checking = asyncio.Lock()
        self._closed = False

    def holds(self) -> bool:
        """Whether this process may act as leader, by its own memory."""
        if self._mine is None or self._closed:
            return False
        return self._clock.monotonic() - self._mine[2] <= LEASE_S

    async def is_leader(self) -> bool:
        if self._closed or self._clock.monotonic() < self._no_until:
            return False
        async with self._checking:
            if self._closed or self._clock.monotonic() < self._no_until:
                return False
            place = self._place()
            leads = (self.holds() and self._mine is not None and self._mine[0] == place) or await self._try(place)
            try:
                await self._hook(leads)
            except (*TROUBLE, MigrationCompleted):
                await self.release()
                leads = False
            if not leads:
                self._no_until = self._clock.monotonic() + HEARTBEAT_S
            return leads and self.holds()

    async def _try(self, place: Place) -> bool:
        try:
            answer = await self._rows.ask(
                "GetItem", TableName=place[0], Key={place[1]: {"S": LOCK_KEY}}, ConsistentRead=True
            )
            row = answer.get("Item")
            now = self._clock.monotonic()
            if not row or "isReleased" in row:
                return await self._claim(place, None)
            version, lasts_s = row["recordVersionNumber"]["S"], int(row["leaseDuration"]["S"]) / 1000
            if self._seen is None or self._seen[:2] != (place, version):
                self._seen = (place, version, now, lasts_s)
                return False
            if now - self._seen[2] > self._seen[3]:
                return await self._claim(place, version)
        except (AwsError, AwsUnreachableError):
            pass
        return False

    async def _claim(self, place: Place, over: str | None) -> bool:
        version = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        row = {
            place[1]: {"S": LOCK_KEY},
            "ownerName": {"S": self._me},
            "leaseDuration": {"S": str(round(LEASE_S * 1000))},
            "recordVersionNumber": {"S": version},
        } | ({"entityType": {"S": "LEADER"}} if self._tagged else {})
        names, values = {"#k": place[1]}, {}
        condition = "attribute_not_exists(#k)"
        if over is not None:
            condition = "attribute_exists(#k) AND #v = :v"
            names["#v"], values[":v"] = "recordVersionNumber", {"S": over}
        params: dict[str, Any] = {"ExpressionAttributeValues": values} if values else {}
        sent_at = self._clock.monotonic()
        won = await self._rows.try_write(
            "PutItem",
            TableName=place[0],
            Item=row,
            ConditionExpression=condition,
            ExpressionAttributeNames=names,
            **params,
        )
        if not won:
            await self._clock.sleep(HEARTBEAT_S)  # the flaw: inside the question
            return False
        self._mine = (place, version, sent_at)
        self._spawn(self._keep(version))
        return True

    async def _keep(self, first: str) -> None:
        """The heartbeat thread of one lock."""
        version = first
        while True:
            await self._clock.sleep(HEARTBEAT_S)
            if self._mine is None or self._mine[1] != version:
                return
            if not self.holds():
                self._mine = None
                return
            place, new, sent_at = self._mine[0], str(uuid.uuid4()), self._clock.monotonic()
            new = str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            try:
                kept = await self._rows.try_write(
                    "UpdateItem",
                    TableName=place[0],
                    Key={place[1]: {"S": LOCK_KEY}},
                    ConditionExpression="attribute_exists(#k) AND #v = :v AND #o = :o",
                    UpdateExpression="SET #d = :d, #v = :n",
                    ExpressionAttributeNames={
                        "#k": place[1],
                        "#v": "recordVersionNumber",
                        "#o": "ownerName",
                        "#d": "leaseDuration",
                    },
                    ExpressionAttributeValues={
                        ":v": {"S": version},
                        ":o": {"S": self._me},
                        ":n": {"S": new},
                        ":d": {"S": str(round(LEASE_S * 1000))},
                    },
                )
            except (AwsError, AwsUnreachableError):
                continue
            if self._mine is None or self._mine[1] != version:
                return
            if not kept:
                self._mine = None
                return
            self._mine, version = (place, new, sent_at), new

    async def release(self) -> None:
        mine, self._mine = self._mine, None
        if mine is None:
            return
        place, version, _ = mine
        with contextlib.suppress(AwsError, AwsUnreachableError):
            await self._rows.try_write(
                "DeleteItem",
                TableName=place[0],
                Key={place[1]: {"S": LOCK_KEY}},
                ConditionExpression="attribute_exists(#k) AND #v = :v AND #o = :o",
                ExpressionAttributeNames={"#k": place[1], "#v": "recordVersionNumber", "#o": "ownerName"},
                ExpressionAttributeValues={":v": {"S": version}, ":o": {"S": self._me}},
            )

    async def close(self) -> None:
        self._closed = True
        await self.release()


class ShuffleDecider:
    """The leader of a fleet in 2.x mode: the first of all lease owners, shuffled by java.util.Random(1947)."""

    def __init__(self, me: str, rows: Rows3, clock: Clock) -> None:
        self._me = me
        self._rows = rows
        self._clock = clock
        self._leaders: list[str] | None = None
        self._next_at = float("-inf")

    def holds(self) -> bool:
        return not self._leaders or self._me in self._leaders

    async def is_leader(self) -> bool:
        if self._clock.monotonic() >= self._next_at or not self._leaders:
            first = self._leaders is None
            try:
                owners = {lease.owner for lease in await self._rows.all() if lease.owner is not None}
                self._leaders = shuffled(sorted(owners))[:1]
            except TROUBLE:
                pass
            self._next_at = self._clock.monotonic() + (FIRST_ELECTION_S if first else ELECTION_S)
        return self.holds()

    async def release(self) -> None:
        pass

    async def close(self) -> None:
        pass


def shuffled(names: list[str]) -> list[str]:
    """java.util.Collections.shuffle(names, new Random(1947))."""
    state = (SEED ^ 0x5DEECE66D) & (2**48 - 1)

    def bits31() -> int:
        nonlocal state
        state = (state * 0x5DEECE66D + 0xB) & (2**48 - 1)
        return state >> 17

    def below(bound: int) -> int:
        if bound & (bound - 1) == 0:
            return (bound * bits31()) >> 31
        while True:
            drawn = bits31()
            rest = drawn % bound
            if drawn - rest + bound - 1 < 2**31:
                return rest

    names = list(names)
    for size in range(len(names), 1, -1):
        other = below(size)
        names[size - 1], names[other] = names[other], names[size - 1]
    return names


__all__ = ["HEARTBEAT_S", "LEASE_S", "LOCK_KEY", "REFUSED", "LockDecider", "MigrationCompleted", "ShuffleDecider"]
