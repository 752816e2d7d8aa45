"""`Failures`: counts the failures of one shard's record processor, and decides what follows from them: the note in the
lease row, the pause before the next start, the search for the record that causes them, which is then set aside, and
whether to give up the shard.

Rules: protocol#restart-delays. Only failures *without checkpoint progress in between* count, and only the processor's
own checkpoints are progress. So a child that fails once an hour, but checkpoints, is restarted for ever. By default, a
child that always dies on the same record is also restarted for ever, with growing pauses: only its own shard waits. A
failure that narrows the search for the record (`Bisecting`) does not lengthen the pause. Our own checkpoint past a
record that was set aside does not shorten the pause. So if a processor cannot work at all, because its database is down
for example, few records are set aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random

from mld.consumer.bisecting import Bisecting
from mld.consumer.checkpoint_range import Write
from mld.consumer.checkpoints import ShardCheckpoints
from mld.consumer.consumer_parts import ConsumerParts
from mld.consumer.dead_letters import dead_letter_of
from mld.consumer.parts import PlacedRecord, records_of
from mld.consumer.ports import ChildStartError
from mld.consumer.record_budgets import RecordBudget
from mld.consumer.stopping import Stopping
from mld.core.errors import DeadLetterError
from mld.core.log_fields import about
from mld.core.positions import Position
from mld.core.streams import ChildBatch
from mld.leases.lease import Failing, Lease
from mld.leases.validity import HeldLease
from mld.metrics.events import EventKind
from mld.properties.settings import ChildSettings
from mld.protocol.conversation import ProcessorError, ProcessorGoneError, ProcessorSilentError

log = logging.getLogger(__name__)

JITTER_SHARE = 0.2  # spreads the restarts of many shards that fail for the same reason

RESTART_REASONS: Mapping[type[Exception], str] = {
    ChildStartError: "start",  # the child could not be started
    ProcessorGoneError: "exit",  # the child exited, or closed its pipes
    ProcessorSilentError: "timeout",  # the child did not answer in time, or did not read in time
    ProcessorError: "protocol",  # the child broke the protocol
}
"""Maps the class of an error to a word that says why the child has to be started again."""


def gives_up(child: ChildSettings, failures: int) -> bool:
    """Return whether to give up a shard, because its consecutive `failures` under this worker exceed the limit that
    the user has set. Without a limit a shard is never given up.
    """
    return child.failures_max is not None and failures > child.failures_max


def delay_s(child: ChildSettings, failures: int, rng: Random) -> float:
    """Return the seconds to wait before the next start after `failures` consecutive failures (0 counts as 1). The
    configured pause is doubled with each failure, up to a limit, and lengthened by a random part (JITTER_SHARE).
    """
    exponential = child.restart_backoff_s * 2.0 ** min(max(0, failures - 1), 30)
    longest_s = max(child.restart_pause_max_s, child.restart_backoff_s)
    return min(exponential, longest_s) * (1 + JITTER_SHARE * rng.random())


class Failures:
    """Counts the failures of one consumer's record processor, and decides what follows from them."""

    def __init__(
        self, held: HeldLease, parts: ConsumerParts, settings: ChildSettings, letters_budget: RecordBudget
    ) -> None:
        self._key = held.lease.key
        self._sender = parts.source_of(held.lease).sender
        self._shard_id = held.lease.shard_id
        self._token = held.token
        self._parts = parts
        self._settings = settings
        self._search = Bisecting(settings.poison_attempts or 0)
        self._letters_budget = letters_budget
        self.count = 0  # failures without checkpoint progress, including those under earlier owners
        self._here = 0  # those failures of `count` that this worker saw
        self._level = 0  # how many times the pause has been lengthened
        self._since_s = 0
        """When the first failure of `count` happened, in epoch seconds."""
        self._is_noted = False  # whether the row has a note of failures
        self._failed_to: Position | None = None  # the furthest record that a failed processor was given
        self._asked_before: Position | None = None
        """The record before which the processor was asked to checkpoint."""
        self._candidate: PlacedRecord | None = None
        """The record that the search has found, until it is set aside."""
        self._last_words: Sequence[str] = ()
        """The last lines on stderr of the processor that failed."""
        self._dead_letters = 0  # how many this consumer has written
        self.why = ""
        """Why the processor failed last."""

    def adjust(self, settings: ChildSettings) -> None:
        """Use other settings from now on; the counts stay."""
        self._settings = settings

    # --- events -------------------------------------------------------------------------------------------------------

    def resume(self, lease: Lease) -> None:
        """Continue the failure count of the last owner, unless there was progress since, or this worker has counted
        failures itself.
        """
        note = lease.failing_now
        if note is None or self.count:
            return
        self.count = self._level = note.failures
        self._since_s = note.since_s
        self._is_noted, self._failed_to = True, note.first
        if note.first is not None:
            self._search = self._search.resumed(note.first, note.attempts)

    def moved(self, checkpoint: Position) -> None:
        """Note that the processor has checkpointed: all counts begin again."""
        self._recover()
        self.count = self._here = self._level = 0
        self._asked_before = None
        self._search = self._search.moved(checkpoint)

    def accepted(self, last: Position | None) -> None:
        """Note that the processor has answered a batch that ends at `last`."""
        if last is not None:
            self._search = self._search.passed(last)

    def caught_up(self, answered: Position, checkpoint: Position) -> bool:
        """Return whether a shard that was failing works again: its new processor has answered all records on which
        earlier ones failed. If so, remove the note of failures from the row with the next renewal.

        `answered` is the last position that the processor has answered, `checkpoint` the one in the row. The count
        stays until the processor checkpoints. Otherwise a processor that dies whenever it is idle would be restarted
        without pauses.
        """
        if not self._is_noted or (self._failed_to is not None and answered < self._failed_to):
            return False
        self._recover()
        removal = Failing(0, self._since_s, checkpoint)  # a note of 0 failures removes the note from the row
        self._parts.keeper.note_failing(self._key, self._token, removal)
        return True

    def _recover(self) -> None:
        """Forget that the shard was failing. Log the recovery, unless the shard has failed only once, which is not
        logged as failing either.
        """
        if self._is_noted and self.count > 1:
            log.info("shard recovered", extra=about("shard_recovered", self._key, failures=self.count))
            self._parts.metrics.events.note(EventKind.RECOVERED, f"after {self.count} failures", shard=self._key)
        self._is_noted, self._failed_to = False, None

    async def note(
        self,
        why: str,
        last_words: Sequence[str],
        checkpoint: Position,
        batch: ChildBatch | None,
        before: Position,
        delivered: Position,
        *,
        is_next: bool,
    ) -> None:
        """Note that the processor has failed: count the failure, pass its records to the search for the record that
        causes failures, and have the count written into the lease row.

        `batch` is what the processor had (None: nothing), and `before` the position before it. `checkpoint` is the
        position in the row, and `delivered` the furthest record that the processor was given. `is_next`: everything
        before the batch is checkpointed. `why` says how the processor failed, and `last_words` are the last lines of
        its stderr.
        """
        self._is_noted, self._failed_to = True, max(delivered, self._failed_to or delivered)
        self.why, self._last_words, self._candidate = why, last_words, None
        self._since_s = self._since_s if self.count else int(self._parts.clock.wall())
        self.count += 1
        self._here += 1
        is_narrowed = False
        if batch is not None:
            is_narrowed = await self._note_batch(checkpoint, batch, before, is_next=is_next)
        self._level += not is_narrowed  # the pause grows, unless the search has come closer to the record
        attempts, first = self._search.attempts, self._search.first
        note = Failing(self.count, self._since_s, checkpoint, attempts if first else 0, first)
        self._parts.keeper.note_failing(self._key, self._token, note)

    async def _note_batch(self, checkpoint: Position, batch: ChildBatch, before: Position, *, is_next: bool) -> bool:
        """Pass the records that the failed processor had, and had not checkpointed, to the search. Return whether the
        failure narrows a search, so that the next part will have fewer records.

        `before` is the position before the batch; with `is_next`, everything before the batch is checkpointed. A
        failure on a single record that came right after the checkpoint does not narrow the search any further.
        """
        handed = await records_of(batch)
        good = max(before, checkpoint)
        open_records = [record for record in handed if record.position > good]
        if not open_records:
            return False  # the processor had checkpointed all its records
        first, last = open_records[0].position, open_records[-1].position
        is_next_alone = len(handed) == 1 and is_next
        was_searching = self._search.is_searching
        self._search = self._search.failed(good, first, last, is_next_alone=is_next_alone)
        if self._search.culprit is not None:
            self._candidate = open_records[0]
        return was_searching and not is_next_alone

    # --- decisions ----------------------------------------------------------------------------------------------------

    @property
    def is_too_much(self) -> bool:
        """Whether to give up the shard after these failures."""
        return gives_up(self._settings, self._here)

    @property
    def is_searching(self) -> bool:
        """Whether to deliver batches in parts."""
        return self._search.is_searching

    def next_part(self, checkpoint: Position, delivered: Position, rest: Sequence[PlacedRecord]) -> int | None:
        """Return how many of the records in `rest` to deliver next; None if the processor must first checkpoint what it
        has.

        The processor is asked to checkpoint only once before each record: a second call with the same `rest` returns a
        number.
        """
        positions = [record.position for record in rest]
        needed = self._search.needs_checkpoint(checkpoint, delivered, positions)
        if needed and self._asked_before != positions[0]:
            self._asked_before = positions[0]
            return None
        return self._search.take(positions)

    async def set_aside_candidate(self, stopping: Stopping, checkpoints: ShardCheckpoints) -> bool:
        """Write the record that the search has found, the culprit, to a dead letter, and checkpoint past it; the search
        continues after it. If the shard has used up its budget for dead letters, wait first.

        Return False if there is no culprit, if the letter or the checkpoint cannot be stored, or if a stop is requested
        meanwhile.
        """
        if self._candidate is None:
            return False
        assert self._parts.letters is not None, "nothing is searched for without a place for it"
        position, framed = self._candidate
        if (wait_s := self._letters_budget.wait_s()) > 0.0:
            await stopping.pause(wait_s)
        framed = framed.as_it_came()  # not as a schema registry's decoder has changed it
        attempts = self._search.attempts
        dead_letter = dead_letter_of(
            framed,
            self._shard_id,
            self._sender,
            self._parts.clock.wall(),
            attempts=attempts,
            why=self._parts.fit(self.why),
            stderr=list(map(self._parts.fit, self._last_words)),
        )
        fields = {"position": str(position), "attempts": attempts}
        try:
            self._letters_budget.charge()
            place = await stopping.unless(self._parts.letters.put(dead_letter))
        except DeadLetterError as error:
            log.error("record %s stays: %s", position, error, extra=about("letter_failed", self._key, **fields))
            return False
        # Give up if a stop has ended the wait (`place` is None), or if the range does not allow this checkpoint.
        if place is None or checkpoints.range.resolve(position.sequence, position.sub) != Write(position):
            return False
        if await checkpoints.store(position) is not None:
            return False
        self._search = self._search.set_aside(position)
        self._candidate = None
        self.count = self._here = 0  # `_level` stays, so that the next pause is not shorter
        self._dead_letters += 1
        fields |= {"place": place, "letters": self._dead_letters}
        log.error("record %s is set aside: %s", position, place, extra=about("record_set_aside", self._key, **fields))
        return True

    def pause_s(self) -> float:
        """Return the seconds to pause before the next start, and log them."""
        pause_s = delay_s(self._settings, self._level, self._parts.rng)
        if self.count == 1:
            log.info("child restarts in %.1f s", pause_s, extra=about("child_restart", self._key, failures=1))
            return pause_s
        since = datetime.fromtimestamp(self._since_s, UTC).isoformat()
        log.warning(
            "shard is failing: %d times without a checkpoint; child restarts in %.1f s, other shards go on",
            self.count,
            pause_s,
            extra=about(
                "shard_failing",
                self._key,
                failures=self.count,
                since=since,
                first=None if self._search.first is None else str(self._search.first),
            ),
        )
        return pause_s
