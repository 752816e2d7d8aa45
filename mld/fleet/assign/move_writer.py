"""`MoveWriter`: writes decided moves, one conditional UpdateItem each, a few at a time.

Rules: coordination#assignment-writes, coordination#take-over-writes. A write is not repeated: if it is refused, another
worker was faster; if its outcome is unknown, the next read of the table shows the row. An expired lease is moved only
if its counter is as seen. (Java checks only the owner, so it may take a lease that has just been renewed.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from mld.core.background_tasks import BackgroundTasks
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.turns import a_few_at_a_time
from mld.fleet.assign.fleet_load import Move, Why
from mld.fleet.observations import Observations
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import LeaseTable, Refusal
from mld.metrics.events import NOBODY, EventKind
from mld.metrics.registry import Metrics

log = logging.getLogger(__name__)

WRITES_WAIT_S = 3.0
"""If no write was answered for this long, `MoveWriter.in_time` waits no longer. Answers may come later, or never: if
the network has swallowed the requests, the next read of the table shows the leases as they were."""
WRITES_WAIT_READS = 2
"""It waits at least this many times as long as the last read of the table took, because the table may be slow."""

OnAssigned = Callable[[tuple[str, ...]], None]
"""Called with the keys of the leases that were moved to this worker itself, at once or by a handoff."""


@dataclass(slots=True)
class Written:
    """The outcomes of some moves, as far as they are known. A write that failed without an answer is in `errors`."""

    done: dict[str, Lease] = field(default_factory=dict)
    """The rows after the writes, by key."""
    refused: int = 0
    errors: list[Exception] = field(default_factory=list)
    is_late: bool = False
    """Whether the caller waits for the moves no longer. Then no further write is sent: the caller will read the table
    again, and decide anew.
    """


@dataclass(eq=False)
class MoveWriter:
    """Writes moves, and notes them in `observations`."""

    table: LeaseTable
    observations: Observations
    clock: Clock
    worker_id: str
    on_assigned: OnAssigned
    metrics: Metrics = field(default_factory=Metrics)
    answers: int = 0
    """How many writes have ended, with or without success."""
    _going_on: BackgroundTasks = field(default_factory=BackgroundTasks)  # writes that `in_time` has begun

    async def in_time(self, work: Coroutine[Any, Any, object], written: Written, read_s: float) -> bool:
        """Run `work`, which writes moves and notes their outcomes in `written`. Wait for it as long as at least one
        write is answered in each `WRITES_WAIT_S`; in a longer time if the last read of the table took long (`read_s`).
        Return whether the work has ended. If not, it sends no further writes, but what it has sent goes on until
        `close`.
        """
        wait_s = max(WRITES_WAIT_S, WRITES_WAIT_READS * read_s)
        writing = self._going_on.spawn(work)
        answers = -1
        while not writing.done() and answers != self.answers:
            answers = self.answers
            await asyncio.wait({writing}, timeout=wait_s)
        if writing.done():
            writing.result()
        else:
            written.is_late = True
        return not written.is_late

    def close(self) -> None:
        """Cancel the work that goes on in the background."""
        self._going_on.cancel()

    async def write(self, moves: Sequence[Move], written: Written, *, counter_matters: bool = False) -> None:
        """Write all moves, and note the outcome of each in `written` as soon as it is known. An error is noted there,
        too, and does not stop the other moves.

        `counter_matters`: each plain assignment is conditional on the counter as seen, so a lease whose row was written
        since is not moved. Otherwise only assignments that take an expired lease from its owner have this condition.
        """

        async def write_one(move: Move) -> None:
            """Write one move, and note the outcome in `written`."""
            if written.is_late:
                return
            try:
                answer = await self.table.apply(_write_of(move, counter_matters=counter_matters))
            except Exception as error:  # the caller may raise it when all writes have ended
                failure = survived(error, "moving a lease", move.lease.key)
                written.errors.append(failure)
                log.debug("%s not moved: %s", move.lease.key, failure, extra=_fields("lease_move_failed", move))
            else:
                self._settle(move, answer, written)
            self.answers += 1

        await a_few_at_a_time(write_one, moves)
        mine = tuple(sorted(key for key, lease in written.done.items() if lease.owner == self.worker_id))
        if mine:
            self.on_assigned(mine)

    def _settle(self, move: Move, answer: Lease | Refusal, written: Written) -> None:
        """Note the answer to a move, in `written` and in the observations."""
        if isinstance(answer, Refusal):
            written.refused += 1
            log.debug("%s not moved: %s", move.lease.key, answer.why, extra=_fields("lease_move_refused", move))
            return
        now = self.clock.monotonic()
        if move.graceful:
            self.observations.handoff_begun(answer, now)
        else:
            self.observations.assigned(answer, now)
        written.done[move.lease.key] = answer
        words = f"from {move.lease.actual_owner or NOBODY} ({move.why.value})"
        self.metrics.events.note(EventKind.MOVED, words, shard=move.lease.key, worker=move.to_worker)
        log.debug(
            "lease %s goes from %s to %s (%s)",
            move.lease.key,
            move.lease.actual_owner or "nobody",
            move.to_worker,
            move.why.value,
            extra=_fields("lease_moved", move),
        )


def _write_of(move: Move, *, counter_matters: bool) -> writes.RowWrite:
    """Return the write that carries out a move: a handoff if the move is graceful, else an assignment. The assignment
    depends on the counter of the row if `counter_matters`, or if the owner is silent.
    """
    if move.graceful:
        return writes.begin_handoff(move.lease, move.to_worker)
    if counter_matters or _is_from_silent(move):
        return writes.assign_expired(move.lease, move.to_worker)
    return writes.assign(move.lease, move.to_worker)


def _is_from_silent(move: Move) -> bool:
    """Return whether the move takes an expired lease from an owner. An owner that has renewed the lease since it was
    read must keep it.
    """
    return move.why is Why.EXPIRED and move.lease.actual_owner is not None


def _fields(action: str, move: Move) -> dict[str, object]:
    """Return the log fields of a move."""
    return {
        "action": action,
        "shard": move.lease.key,
        "from_worker": move.lease.actual_owner,
        "to_worker": move.to_worker,
        "why": move.why.value,
        "graceful": move.graceful,
    }
