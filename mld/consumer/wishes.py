"""What operators want of the holder of a shard, as the row of its lease says: a pause, records left out, a new child.

Rules: leases#pauses, leases#records-left-out, leases#new-children. The words for a new child differ with each asking;
those of before this holding were meant for another child. A wish is never a failure of the record processor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from mld.consumer.parts import PlacedRecord
from mld.consumer.stopping import PauseGate
from mld.core.positions import SUB_MAX, Position
from mld.core.streams import ChildBatch
from mld.leases.lease import Lease

log = logging.getLogger(__name__)


class Wishes:
    """Those of one holding. `on_pause` hears when a pause begins or ends."""

    def __init__(self, lease: Lease, on_pause: Callable[[bool], None]) -> None:
        self.gate = PauseGate(on_pause)
        self.restart_asked = asyncio.Event()
        """A new child is due, without a pause; cleared when it starts."""
        self._key = lease.key
        self._left_out: frozenset[str] = frozenset()
        self._restart = lease.restart
        self.heed(lease, is_waiting=False)

    def heed(self, lease: Lease, *, is_waiting: bool) -> bool:
        """Take in what the row says now; whether the child is to be killed. `is_waiting`: for its next start."""
        if self.gate.turn(lease.paused is not None):
            if lease.paused is None:
                log.info("resumed", extra=self._about("shard_resumed"))
            else:
                log.info("paused: %s", lease.paused, extra=self._about("shard_paused"))
        is_unblocked = is_waiting and not lease.left_out <= self._left_out
        is_asked = lease.restart is not None and lease.restart != self._restart
        self._left_out, self._restart = lease.left_out, lease.restart
        if is_asked:
            log.info("a new child is wanted: %s", lease.restart, extra=self._about("child_restart_asked"))
        if is_asked or is_unblocked:
            self.restart_asked.set()
        return is_asked

    def concern(self, batch: ChildBatch, after: Position) -> bool:
        """Return whether a record that is to be left out may be in a batch of what comes after a position."""
        if batch.largest is None:
            return False
        parts = (mark.partition("/") for mark in self._left_out)
        firsts = (Position(sequence, int(sub or 0)) for sequence, _, sub in parts)
        return any(first <= batch.largest and Position(first.sequence, SUB_MAX) > after for first in firsts)

    def kept(self, records: Iterable[PlacedRecord]) -> list[PlacedRecord]:
        """Return the records but for those that are to be left out, which are logged."""
        kept = []
        for record in records:
            sequence, sub = record.framed.sequence, record.framed.sub
            if sequence in self._left_out or f"{sequence}/{sub}" in self._left_out:
                log.warning("record %s is left out, as asked", record.position, extra=self._about("record_left_out"))
            else:
                kept.append(record)
        return kept

    def _about(self, action: str) -> dict[str, object]:
        return {"action": action, "shard": self._key}
