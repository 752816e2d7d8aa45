"""What a consumer tells about itself, as it happens: the shard's part of the worker's metrics.

Verbs for the consumer's shell, so that it says what happened and not which instrument that is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from enum import Enum

from mld.clock import Clock
from mld.consumer.lifecycle import ActivityOutcome, ConsumerState
from mld.consumer.ports import ChildStartError
from mld.leases.lease import ShardStatus
from mld.metrics.registry import Metrics, ShardActivity, ShardMetrics
from mld.positions import Position
from mld.streams import ChildBatch, Page
from protocol.conversation import ProcessorGoneError, ProcessorSilentError

_ACTIVITIES: Mapping[ConsumerState, ShardActivity] = {
    ConsumerState.PARKED: ShardActivity.PARKED,
    ConsumerState.SHARD_ENDING: ShardActivity.ENDING,
    ConsumerState.BACKING_OFF: ShardActivity.FAILING,
}
PARKED = "Kinesis does not know this shard; nothing is skipped, the log says what may be wrong"
"""What is told as the error of a parked shard."""


_ENDINGS = frozenset({ConsumerState.SHARD_ENDING, ConsumerState.SHUTDOWN_REQUESTED})


class RestartReason(Enum):
    """Why a child has to be started again."""

    START = "start"  # it could not be started
    EXIT = "exit"  # it ended, or closed its pipes
    TIMEOUT = "timeout"  # it did not answer, or read, in time
    PROTOCOL = "protocol"  # it said what it may not


def reason_of(error: Exception) -> RestartReason:
    """The reason in one word."""
    match error:
        case ChildStartError():
            return RestartReason.START
        case ProcessorGoneError():
            return RestartReason.EXIT
        case ProcessorSilentError():
            return RestartReason.TIMEOUT
        case _:
            return RestartReason.PROTOCOL


class ShardCounters:
    """One for each consumer; `close` ends its series."""

    def __init__(self, metrics: Metrics, key: str, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._state = ConsumerState.WAITING_ON_PARENTS
        self._is_failing = False
        self._is_paused = False
        self.part = metrics.begin(key, clock.monotonic())

    def close(self) -> None:
        self._metrics.end(self.part)

    def entered(self, state: ConsumerState) -> None:
        """The consumer is in this state now."""
        if state is ConsumerState.PARKED is not self._state:
            self._note_error(PARKED)
        self._state = state
        self._tell()

    def paused(self, is_paused: bool) -> None:
        """An operator has paused the shard, or lets it go on."""
        self._is_paused = is_paused
        self._tell()

    def took(self, page: Page) -> None:
        """A page came from the reader, and is to be delivered."""
        wall_s = self._clock.wall()
        if page.millis_behind_latest is not None:
            self.part.saw_lag(page.millis_behind_latest, wall_s)
        if page.count:
            self.part.moved_wall_s = wall_s
            self.part.oldest_wall_s = min(wall_s, (page.first_arrival_ms or math.inf) / 1000)  # of Kinesis's clock

    def over(self, outcome: ActivityOutcome) -> ActivityOutcome:
        """Note how the delivery of the page that was taken last ended."""
        if outcome is ActivityOutcome.DONE:
            self.part.moved_wall_s = self.part.oldest_wall_s = None
        return outcome

    def read_failed(self, error: Exception) -> int:
        """Count a read that failed before there was a reader; returns the level to log it at."""
        return logging.WARNING if self.part.failed_reads.failed(error, self._clock.wall()) else logging.DEBUG

    def _moved(self) -> None:
        if self.part.moved_wall_s is not None:
            self.part.moved_wall_s = self._clock.wall()

    def handed_over(self) -> float:
        """A batch goes to the child; returns the time, for `answered`."""
        now = self._clock.monotonic()
        self.part.busy_since = now
        self._tell()
        return now

    def answered(self, batch: ChildBatch | None, since: float) -> None:
        """The child has answered for `batch`; None: it did not, or not well."""
        part = self.part
        part.busy_since = None
        seconds = self._clock.monotonic() - since
        part.process_records.note(seconds)
        part.tasks.note(batch is not None, seconds)
        if batch is not None:
            part.batches.note(batch.count)
            part.record_bytes.note(batch.data_bytes)
            self._metrics.worker.records += batch.count
            self._metrics.worker.record_bytes += batch.data_bytes
            if part.behind_ms is not None:
                part.behind.note(part.behind_ms)
            if batch.largest is not None:
                part.delivered = batch.largest
            self._moved()
        self._tell()

    def stored(self, result: str, since: float, position: Position | None = None) -> None:
        """The table has answered a checkpoint, sent at `since`, with this result: stored, refused or error."""
        part, now = self.part, self._clock.monotonic()
        part.checkpoints.note(result == "stored", now - since)
        if self._state in _ENDINGS:
            part.ending_checkpoints.note(result == "stored", now - since)
        part.checkpoints_by.add(result)
        if position is not None:
            part.checkpoint_at = now
            self._moved()
            self._is_failing = False
            self._tell()

    def failed(self, error: Exception) -> None:
        """The child has failed, and is to be started again."""
        self.part.moved_wall_s = None
        self.part.on_tip(self.part.key, False)
        self.part.restarts.add(reason_of(error).value)
        self._note_error(str(error))
        self._metrics.worker.child_restarts += 1
        self._is_failing = True
        self._tell()

    def _note_error(self, words: str) -> None:
        self.part.last_error = words
        self.part.last_error_wall_s = self._clock.wall()

    def _tell(self) -> None:
        activity = _ACTIVITIES.get(self._state)
        if activity is None and self._is_failing:
            activity = ShardActivity.FAILING
        if activity is None and self._is_paused and self.part.busy_since is None:
            activity = ShardActivity.PAUSED
        if activity is None:
            activity = ShardActivity.IDLE if self.part.busy_since is None else ShardActivity.PROCESSING
        self.part.activity = activity


def status_of(part: ShardMetrics | None, wall_s: float) -> ShardStatus | None:
    """What the row of a shard tells people at `wall_s`; None if nobody works on it."""
    if part is None:
        return None
    return ShardStatus(
        part.activity_at(wall_s).value, int(wall_s), part.lag_ms(wall_s), part.delivered, part.why_at(wall_s)
    )
