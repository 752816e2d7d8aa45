"""The shard consumer of a Java 2.x worker and the processor in it. Part of `java2`.

Rules: shards#what-java-does-differently, retrieval#what-java-does-differently; protocol#checkpoint-range. Written
from a description of Java alone.
"""

from __future__ import annotations

import asyncio
import json
from enum import Enum, IntEnum, auto
from typing import TYPE_CHECKING

from mld.core.errors import InvalidStreamArgumentError, IteratorExpiredError, StreamError, StreamNotFoundError
from mld.core.positions import SHARD_END, Position
from mld.core.streams import ChildShard, HashRange, IteratorType, Page, StartingPoint
from tests.simulation.world.java2_table import (
    END,
    TROUBLE,
    CheckpointRefused,
    CorruptRow,
    Exit,
    InvalidState,
    Lease,
    new_row,
)

if TYPE_CHECKING:
    from tests.simulation.world.java2 import JavaWorker

PARENT_POLL_S = 10.0
TASK_BACKOFF_S = 0.5
GIVE_UP_MERGE = 1 / 30
WORK_MAX_S = 1.5
RETRY_CHECKPOINT_S = 5.0


class State(Enum):
    WAITING_ON_PARENTS = auto()
    INITIALIZING = auto()
    PROCESSING = auto()
    SHUTDOWN_REQUESTED = auto()
    SHUTDOWN_NOTIFIED = auto()
    SHUTTING_DOWN = auto()
    COMPLETE = auto()


class Reason(IntEnum):
    REQUESTED = 1
    SHARD_END = 2
    LEASE_LOST = 3


_NEXT = {State.WAITING_ON_PARENTS: State.INITIALIZING, State.INITIALIZING: State.PROCESSING}
_ON_REQUEST = {
    State.INITIALIZING: State.SHUTDOWN_REQUESTED,
    State.PROCESSING: State.SHUTDOWN_REQUESTED,
    State.SHUTDOWN_REQUESTED: State.SHUTDOWN_NOTIFIED,
    State.SHUTDOWN_NOTIFIED: State.SHUTDOWN_NOTIFIED,
}


class Consumer:
    """One holding of one lease: a state machine that moves once per pass."""

    def __init__(self, worker: JavaWorker, lease: Lease) -> None:
        self.shard = lease.key
        self.reason: Reason | None = Reason.SHARD_END if lease.checkpoint == END else None
        self.is_notified = False
        self._worker = worker
        self._lease = lease
        self._token = lease.token
        self._clock = worker.clock
        self._state = State.WAITING_ON_PARENTS
        self._outcome: bool | None = None
        self._step: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._is_ready = False
        self._batch = asyncio.Lock()
        self._child: int | None = None
        self._iterator: str | None = None
        self._known = ""
        """Sequence number of the last record fetched, at first the checkpoint."""
        self._children: tuple[ChildShard, ...] = ()
        self._last = self._largest = Position("TRIM_HORIZON")
        self._end: Position | None = None
        """The largest position when the shard ended: a checkpoint of it is one of SHARD_END."""

    @property
    def is_complete(self) -> bool:
        return self._state is State.COMPLETE

    def end(self, reason: Reason) -> None:
        if self.reason is None or self.reason < reason:
            self.reason = reason

    def step(self) -> None:
        if self.is_complete or (self._step is not None and not self._step.done()):
            return
        if self.reason is not None:
            self._step = self._worker.spawn(self._ending_step())
        elif self._is_ready:
            self._reader = self._reader or self._worker.spawn(self._read())
        else:
            self._step = self._worker.spawn(self._starting_step())

    async def _starting_step(self) -> None:
        if self._outcome:
            self._state = _NEXT[self._state]
        if self._state is State.PROCESSING:
            self._is_ready = True
        else:
            self._outcome = await self._task()

    async def _ending_step(self) -> None:
        async with self._batch:  # a running batch is waited for, never interrupted
            if self._reader is not None:
                self._reader.cancel()
            if self._outcome is not False:
                if self._state is State.SHUTTING_DOWN:
                    self._state = State.COMPLETE
                elif self.reason is Reason.REQUESTED:
                    self._state = _ON_REQUEST.get(self._state, State.SHUTTING_DOWN)
                else:
                    self._state = State.SHUTTING_DOWN
            if not self.is_complete:
                self._outcome = await self._task()

    async def _task(self) -> bool:
        try:
            match self._state:
                case State.WAITING_ON_PARENTS:
                    return await self._wait_for_parents()
                case State.INITIALIZING:
                    await self._initialize()
                case State.SHUTDOWN_REQUESTED:
                    await self._notify()
                case State.SHUTTING_DOWN if self.reason is Reason.SHARD_END:
                    await self._end_shard()
        except (*TROUBLE, StreamError, CheckpointRefused):
            await self._clock.sleep(TASK_BACKOFF_S)
            return False
        return True

    async def _wait_for_parents(self) -> bool:
        try:
            for parent in self._lease.parents:
                row = await self._worker.rows.get(parent)
                if row is not None and (row.checkpoint, row.sub) != (END, 0):
                    break
            else:
                return True
        except TROUBLE:
            pass
        await self._clock.sleep(PARENT_POLL_S)
        return False

    async def _initialize(self) -> None:
        worker = self._worker
        row = await worker.rows.get(self.shard)
        if row is None:
            raise CorruptRow(self.shard)
        if row.checkpoint == END:  # re-adopted from a stale scan: Java asks for this "number", again and again
            raise InvalidStreamArgumentError(f"{self.shard}: {END}")
        self._known = row.checkpoint
        self._iterator = await self._new_iterator(IteratorType.AT_SEQUENCE_NUMBER)
        self._last = self._largest = Position(row.checkpoint, row.sub)
        self._child = next(worker.child_numbers)
        self._perhaps_die()

    async def _new_iterator(self, numbered: IteratorType) -> str | None:
        """None: no such shard. A restart is AFTER the number, although nothing may have been read of it."""
        if self._known in ("TRIM_HORIZON", "LATEST"):
            point = StartingPoint(IteratorType(self._known))
        elif self._known == "AT_TIMESTAMP":
            point = StartingPoint(IteratorType.AT_TIMESTAMP, timestamp_s=self._worker.initial.timestamp_s)
        else:
            point = StartingPoint(numbered, sequence=self._known)
        try:
            return await self._worker.streams.shard_iterator(self.shard, point)
        except StreamNotFoundError:
            return None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            asked_at = self._clock.monotonic()
            try:
                page = await self._fetch()
            except StreamError:
                await self._clock.sleep(self._worker.idle_s)
                continue
            async with self._batch:
                if self.reason is not None:
                    return
                if page is not None:
                    await self._process(page)
                if page is None or page.next_iterator is None:
                    self._children = page.child_shards if page is not None else ()
                    self.end(Reason.SHARD_END)
                    return
            self._iterator, self._known = page.next_iterator, page.last_sequence or self._known
            await self._clock.sleep(max(0.0, self._worker.idle_s - (self._clock.monotonic() - asked_at)))

    async def _fetch(self) -> Page | None:
        """None: the shard has ended without a word about children."""
        try:
            if self._iterator is None:
                return None
            page = await self._worker.streams.get_records(self._iterator, None)
        except StreamNotFoundError:
            return None
        except (IteratorExpiredError, InvalidStreamArgumentError):
            self._iterator = await self._new_iterator(IteratorType.AFTER_SEQUENCE_NUMBER)
            raise
        if (page.next_iterator is None) != bool(page.child_shards) or any(not c.parents for c in page.child_shards):
            raise StreamError("an answer that contradicts itself")
        return page

    # --- the processor ------------------------------------------------------------------------------------------------

    def _perhaps_die(self, share: float = 1.0) -> None:
        if self._worker.rng.random() < self._worker.rates.child_dies * share:
            raise Exit(1)

    async def _process(self, page: Page) -> None:
        ends = self._lease.hash_range
        batch = page.after(self._largest, None if ends is None else HashRange(int(ends[0]), int(ends[1])))
        if batch.largest is None:
            return
        worker, rng, child = self._worker, self._worker.rng, self._child
        assert child is not None
        self._largest = batch.largest
        worker.ledger.batch_begins(worker.worker_id, self.shard, is_ours=False)
        self._perhaps_die(0.5)
        records = json.loads(b"".join(batch.line()))["records"]
        places = [(int(record["sequenceNumber"]), record["subSequenceNumber"]) for record in records]
        worker.ledger.delivered(worker.worker_id, child, self.shard, places)
        if rng.random() < 0.1:
            await self._clock.sleep(rng.uniform(0.0, WORK_MAX_S))
        self._perhaps_die(0.5)
        if rng.random() >= worker.rates.child_silent:
            await self._try_checkpoint()

    async def _try_checkpoint(self) -> bool:
        """As a child that takes no for an answer. False: it may have been stored or not."""
        try:
            await self._checkpoint()
        except TROUBLE:
            return False
        except CheckpointRefused:
            pass
        return True

    async def _checkpoint(self) -> None:
        value = SHARD_END if self._largest == self._end else self._largest
        if value != self._last:
            await self._worker.renewer.checkpoint(self.shard, self._token, value)
            self._last = value

    async def _notify(self) -> None:
        """`shutdownRequested`; then the lease is dropped, in memory only."""
        try:
            self._perhaps_die()
            if self._worker.rng.random() < 0.8:
                await self._try_checkpoint()
        finally:
            self._worker.renewer.owned.pop(self.shard, None)
            self.is_notified = True

    # --- the end of a shard -------------------------------------------------------------------------------------------

    async def _end_shard(self) -> None:
        """Without children (ResourceNotFound) it is an end like any other."""
        worker = self._worker
        try:
            if self.shard not in worker.held():
                raise InvalidState("not held")
            if self._children:
                await self._make_children()
            if any(lease.key == self.shard for lease in worker.finished):
                return
            row = await worker.rows.get(self.shard)
            if row is None:
                raise InvalidState("no row")
            if row.checkpoint != END:
                await self._shard_ended()
            worker.finished.append(self._lease)
        except InvalidState:
            worker.renewer.owned.pop(self.shard, None)

    async def _make_children(self) -> None:
        rows = self._worker.rows
        if len(self._children) == 1:
            parents = sorted(self._children[0].parents)
            if len(parents) != 2:
                raise InvalidState("a merge of one")
            missing = [parent for parent in parents if await rows.get(parent) is None]
            if len(missing) == 1:
                if self._worker.rng.random() < GIVE_UP_MERGE:
                    raise InvalidState(f"{missing[0]} has no row")
                raise CorruptRow(f"blocked: {missing[0]} has no row")
        for child in self._children:
            if await rows.get(child.shard_id) is None:
                ends = child.hash_range
                parents = sorted(child.parents)
                await rows.create(new_row(child.shard_id, "TRIM_HORIZON", parents, ends.start, ends.end))
        await rows.set_children(self.shard, [child.shard_id for child in self._children])

    async def _shard_ended(self) -> None:
        """The child repeats its checkpoint until it knows: MultiLang would not ask it a second time."""
        if self._largest != SHARD_END:
            self._end, self._largest = self._largest, SHARD_END
        self._perhaps_die()
        while not await self._try_checkpoint():
            await self._clock.sleep(RETRY_CHECKPOINT_S)
        if self._last != SHARD_END:
            raise CheckpointRefused(self.shard)
