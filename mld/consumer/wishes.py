"""`Wishes`: follows an operator's requests to the holder of a shard: pause, leave out records, start a new child.

Rules: leases#pauses, leases#records-left-out, leases#new-children. The requests are attributes of the lease row. Each
request for a new child has a different text. A text that was in the row before this holding began was meant for an
earlier child. When a child is killed because of a request, that does not count as a failure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from mld.consumer.parts import PlacedRecord
from mld.core.log_fields import about
from mld.core.positions import SUB_MAX, Position
from mld.core.streams import ChildBatch
from mld.leases.lease import Lease

log = logging.getLogger(__name__)

T = TypeVar("T")


class Wishes:
    """The operator's requests during one holding. `on_pause` is called when a pause begins (True) or ends (False)."""

    def __init__(self, lease: Lease, on_pause: Callable[[bool], None]) -> None:
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._on_pause = on_pause
        self.restart_asked = asyncio.Event()
        """Set when a new child must be started without a back-off; cleared when that child starts."""
        self._key = lease.key
        self._left_out: frozenset[str] = frozenset()  # the records to leave out
        self._restart = lease.restart  # the last request for a new child that was seen
        self.heed(lease, is_waiting=False)

    def heed(self, lease: Lease, *, is_waiting: bool) -> bool:
        """Follow the requests in the row of `lease`; return whether to kill the child, because a new one is wanted.

        `is_waiting`: the consumer pauses before it starts the next child. If the operator then wants more records left
        out, the pause is cut short.
        """
        if (lease.paused is None) is not self._unpaused.is_set():
            self._on_pause(lease.paused is not None)
            if lease.paused is None:
                self._unpaused.set()
                log.info("resumed", extra=about("shard_resumed", self._key))
            else:
                self._unpaused.clear()
                log.info("paused: %s", lease.paused, extra=about("shard_paused", self._key))
        is_unblocked = is_waiting and not lease.left_out <= self._left_out
        is_asked = lease.restart is not None and lease.restart != self._restart
        self._left_out, self._restart = lease.left_out, lease.restart
        if is_asked:
            log.info("a new child is wanted: %s", lease.restart, extra=about("child_restart_asked", self._key))
        if is_asked or is_unblocked:
            self.restart_asked.set()
        return is_asked

    @property
    def is_paused(self) -> bool:
        return not self._unpaused.is_set()

    async def until_unpaused(self) -> None:
        await self._unpaused.wait()

    async def unpaused(self, awaitable: Awaitable[T]) -> T:
        """Wait for the awaitable, and then until the shard is not paused; return the awaitable's value. If this call is
        cancelled, the value is lost, and the records are read again from the checkpoint.
        """
        value = await awaitable
        await self._unpaused.wait()
        return value

    def concern(self, batch: ChildBatch, after: Position) -> bool:
        """Return whether a batch of records after position `after` may contain a record that the operator wants left
        out. It may name too many batches, but misses none.

        The operator names a record as `SEQUENCE`, with all its user records, or one user record as `SEQUENCE/SUB`.
        """
        if batch.largest is None or not self._left_out:
            return False
        parts = (record.partition("/") for record in self._left_out)
        firsts = (Position(sequence, int(sub or 0)) for sequence, _, sub in parts)
        # A record named as `SEQUENCE` may have user records with any sub-sequence number up to SUB_MAX.
        return any(first <= batch.largest and Position(first.sequence, SUB_MAX) > after for first in firsts)

    def kept(self, records: Iterable[PlacedRecord]) -> list[PlacedRecord]:
        """Return the records except those that the operator wants left out; log each of these."""
        kept = []
        for record in records:
            sequence, sub = record.framed.sequence, record.framed.sub
            if sequence in self._left_out or f"{sequence}/{sub}" in self._left_out:
                log.warning(
                    "record %s is left out, as asked", record.position, extra=about("record_left_out", self._key)
                )
            else:
                kept.append(record)
        return kept
