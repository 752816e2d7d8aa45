"""A Java worker of KCL 2.3-2.7, flaws included, to live beside ours in mixed fleets.

Rules: leases#what-java-does-differently, shards#what-java-does-differently, retrieval#what-java-does-differently. It is
written from a description of Java alone and must never import our own machinery, so that one misunderstanding cannot
hide another. Left out: the auditor and the sync of a table with rows, the deletion of garbage leases, read-ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from random import Random
from typing import Any

from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.errors import AwsError, StreamError, StreamNotFoundError, StreamThrottledError
from mld.core.positions import InitialPosition
from mld.core.streams import HASH_KEY_MAX, Shard, ShardFilter, ShardFilterType, Streams
from mld.core.waits import wait_for_event
from tests.simulation.world.children import Ledger
from tests.simulation.world.java2_consumer import Consumer, Reason
from tests.simulation.world.java2_table import (
    EPSILON_S,
    NEVER,
    TROUBLE,
    CorruptRow,
    Exit,
    InvalidState,
    Lease,
    Renewer,
    Rows,
    choose,
    new_row,
)
from tests.simulation.world.plan import Rates

TAKE_ATTEMPTS = 3
START_ATTEMPTS, START_BACKOFF_S = 20, 1.0
EMPTY_POLL_S = 3.0
EMPTY_WAIT_S = (1.0, 30.0)
SYNC_IDLE_S = 60.0
PARTITION_TRIES = 3
LIST_ATTEMPTS, LIST_BACKOFF_S = 50, 1.5
PASS_S = 1.0
CLEANUP_TICK_S, CLEANUP_INTERVAL_S = 60.0, 300.0
SHUTDOWN_GRACE_S = 30.0
"""`shutdownGraceMillis` of an operator who knows it: then the process ends whatever its consumers do."""


class JavaWorker:
    """One process. `rates` may be changed at any time."""

    def __init__(
        self,
        worker_id: str,
        dynamo: Service,
        streams: Streams,
        ledger: Ledger,
        clock: Clock,
        rng: Random,
        *,
        table: str,
        failover_s: float,
        steals_max: int,
        initial: InitialPosition,
        idle_s: float,
        child_numbers: Iterator[int],
        rates: Rates,
    ) -> None:
        self.worker_id = worker_id
        self.rates = rates
        self.rows: Any = Rows(dynamo, clock, rng, table)
        self.renewer: Any = Renewer(self.rows, clock, failover_s)
        self.streams = streams
        self.ledger = ledger
        self.clock = clock
        self.rng = rng
        self.initial = initial
        self.idle_s = idle_s
        self.child_numbers = child_numbers
        self.finished: list[Lease] = []
        """Completed leases that wait for their deletion."""
        self._failover_s = failover_s
        self._steals_max = steals_max
        self._seen: dict[str, Lease] = {}
        self._consumers: dict[object, Consumer] = {}
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self._cleaned_at = NEVER

    def held(self) -> frozenset[str]:
        """The shards whose leases it believes to be its own now."""
        return frozenset(lease.key for lease in self.renewer.held())

    def request_stop(self) -> None:
        """Graceful, within SHUTDOWN_GRACE_S; rows are left as they are."""
        self._stop.set()

    async def run(self) -> int:
        """The exit code: 1 if a record processor failed, which ends the whole daemon."""
        code = 0
        try:
            async with self._group:
                self.spawn(self._main())
        except* Exit as ended:
            code = max(error.code for error in ended.exceptions if isinstance(error, Exit))
        return code

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work)

    async def _main(self) -> None:
        for _ in range(START_ATTEMPTS):
            try:
                await self.rows.ensure_table()
                await self._bootstrap()
                await self.renewer.readopt(self.worker_id)
                break
            except (*TROUBLE, StreamError, InvalidState):
                await self._pause(START_BACKOFF_S)
        else:
            raise Exit(0)
        self._cleaned_at = self.clock.monotonic()
        self.spawn(self._at_rate(self._failover_s / 3 - EPSILON_S, self.renewer.tick))
        self.spawn(self._at_rate(CLEANUP_TICK_S, self._clean))
        self.spawn(self._take_leases())
        while not self._stop.is_set():
            self._dispatch()
            await self.clock.sleep(PASS_S)
        await self._shut_down()

    async def _pause(self, seconds: float) -> None:
        if await wait_for_event(self._stop, seconds):
            raise Exit(0)

    async def _at_rate(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Java's fixed rate: late runs are made up for, one after another."""
        due = self.clock.monotonic()
        while True:
            await work()
            due += period_s
            await self.clock.sleep(max(0.0, due - self.clock.monotonic()))

    # --- bootstrap ----------------------------------------------------------------------------------------------------

    async def _bootstrap(self) -> None:
        """Whoever still finds the table empty after its own wait fills it."""
        give_up_at = self.clock.monotonic() + self.rng.uniform(*EMPTY_WAIT_S)
        while self.clock.monotonic() < give_up_at:
            if not await self.rows.is_empty():
                return
            await self._pause(EMPTY_POLL_S)
        if not await self.rows.is_empty():
            return
        name = self.initial.sentinel.sequence
        for shard in await self._snapshot(ShardFilterType(name if name == "AT_TIMESTAMP" else f"AT_{name}")):
            ends = shard.hash_range
            await self.rows.create(new_row(shard.shard_id, name, sorted(shard.parents), ends.start, ends.end))
        await self._pause(SYNC_IDLE_S)

    async def _snapshot(self, kind: ShardFilterType) -> list[Shard]:
        for _ in range(PARTITION_TRIES):
            shards = await self.list_shards(ShardFilter(kind, self.initial.timestamp_s))
            ranges = sorted((shard.hash_range.start, shard.hash_range.end) for shard in shards)
            edges = [-1, *(end for _, end in ranges)]
            if (
                ranges
                and edges[-1] == HASH_KEY_MAX
                and all(s == e + 1 for (s, _), e in zip(ranges, edges, strict=False))
            ):
                return sorted(shards, key=lambda shard: (int(shard.starting_sequence), shard.shard_id))
            await self._pause(1.0)
        raise InvalidState("the listing is no partition of the hash keys")

    async def list_shards(self, shard_filter: ShardFilter | None) -> list[Shard]:
        shards: list[Shard] = []
        token: str | None = None
        for _ in range(LIST_ATTEMPTS):
            try:
                page = await self.streams.list_shards(None if token else shard_filter, token)
            except StreamThrottledError:
                await self.clock.sleep(LIST_BACKOFF_S)
                continue
            shards += page.shards
            token = page.next_token
            if token is None:
                return shards
        raise StreamThrottledError("ListShards")

    # --- taker --------------------------------------------------------------------------------------------------------

    async def _take_leases(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(*TROUBLE):  # then what this pass took stays taken in the table, until it expires
                self.renewer.add(await self._take_pass())
            await self.clock.sleep(2 * (self._failover_s + EPSILON_S))

    async def _take_pass(self) -> list[Lease]:
        started = self.clock.monotonic()
        rows = await self.rows.all()
        now = self.clock.monotonic()
        self._observe(rows, now)
        leases = list(self._seen.values())
        take, steal = choose(
            self.worker_id, leases, now, lease_s=self._failover_s, steals_max=self._steals_max, rng=self.rng
        )
        slow = now - started > 0.5 * self._failover_s / 3
        taken = []
        for lease in [*take, *(await self._reread(steal) if slow else steal)]:
            if await self._take(lease):
                lease.moved_at = self.clock.monotonic()
                taken.append(lease)
        return taken

    def _observe(self, rows: list[Lease], now: float) -> None:
        for lease in rows:
            before = self._seen.get(lease.key)
            if before is None:
                lease.moved_at = NEVER if lease.owner is None else now
            else:
                lease.moved_at = before.moved_at if before.counter == lease.counter else now
        self._seen = {lease.key: lease for lease in rows}

    async def _reread(self, leases: list[Lease]) -> list[Lease]:
        """After a slow scan, without another look at whose they are. A vanished row ends the pass."""
        fresh = []
        for lease in leases:
            try:
                row = await self.rows.get(lease.key)
            except TROUBLE:
                row = lease
            if row is None:
                raise CorruptRow(lease.key)
            fresh.append(row)
        return fresh

    async def _take(self, lease: Lease) -> bool:
        for attempt in range(1, TAKE_ATTEMPTS + 1):
            try:
                return await self.rows.take(lease, self.worker_id)
            except AwsError as error:
                if error.code != "ProvisionedThroughputExceededException" or attempt == TAKE_ATTEMPTS:
                    raise
        return False

    # --- dispatch -----------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """One pass of the run loop."""
        held = {lease.token: lease for lease in self.renewer.held()}
        for token, lease in held.items():
            consumer = self._consumers.get(token)
            if consumer is None or (consumer.is_complete and consumer.reason is Reason.LEASE_LOST):
                consumer = self._consumers[token] = self._make_consumer(lease)
            elif consumer.is_complete and consumer.reason is not Reason.SHARD_END:
                self.renewer.owned.pop(lease.key, None)
            consumer.step()
        for token, consumer in list(self._consumers.items()):
            if token not in held:
                consumer.end(Reason.LEASE_LOST)
                consumer.step()
                if consumer.is_complete:
                    del self._consumers[token]

    def _make_consumer(self, lease: Lease) -> Consumer:
        return Consumer(self, lease)

    async def _shut_down(self) -> None:
        """First the notifications, then everything that is left is lost."""
        started = self.clock.monotonic()
        held = {lease.token for lease in self.renewer.held()}
        waited_for = [c for token, c in self._consumers.items() if token in held and not c.is_complete]
        for consumer in waited_for:
            consumer.end(Reason.REQUESTED)
        plain_at = math.inf
        while self.clock.monotonic() - started < SHUTDOWN_GRACE_S:
            self._dispatch()
            await self.clock.sleep(PASS_S)
            if plain_at == math.inf and all(c.is_notified or c.is_complete for c in waited_for):
                plain_at = self.clock.monotonic()
            if plain_at < math.inf:
                self.renewer.owned.clear()
                if not self._consumers or self.clock.monotonic() - plain_at >= self._failover_s:
                    break
        raise Exit(0)

    # --- cleanup ------------------------------------------------------------------------------------------------------

    async def _clean(self) -> None:
        if self.clock.monotonic() - self._cleaned_at < CLEANUP_INTERVAL_S:
            return
        queue, self.finished = self.finished, []
        for lease in queue:
            try:
                if await self._clean_one(lease):
                    continue
            except (*TROUBLE, StreamError, InvalidState):
                pass
            self.finished.append(lease)

    async def _clean_one(self, lease: Lease) -> bool:
        """Whether the entry is done with. The deletion is unconditional."""
        row = await self.rows.get(lease.key)
        if row is None:
            return True
        children = row.children
        if not children:
            try:
                listed = await self.list_shards(None)
            except StreamNotFoundError:
                listed = []
            children = tuple(sorted(shard.shard_id for shard in listed if lease.key in shard.parents))
            if children:
                await self.rows.set_children(lease.key, children)
        for child in children:
            state = await self.rows.get(child)
            if state is None:
                raise InvalidState(f"{child} has no row")
            if state.checkpoint in ("TRIM_HORIZON", "AT_TIMESTAMP"):
                return False
        for parent in lease.parents:
            if await self.rows.get(parent) is not None:
                return False
        await self.rows.delete(lease.key)
        self._cleaned_at = self.clock.monotonic()
        return True
