"""`Failures`: the failures of one shard's record processor, counted, noted on the lease row, and traced to a record.

Rules: protocol#restart-delays. Only failures *without checkpoint progress in between* count, and only the processor's
own checkpoints are progress: a child that fails once an hour but moves on is restarted for ever. By default so is one
that dies on the same record, with pauses that grow: its shard waits, and no other does. A failure that narrows the
search for a record (`Bisecting`) makes no pause longer. Our own checkpoint past a record that was set aside makes none
shorter. So a processor that cannot work at all, because its database is down for example, costs few records.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random

from mld.consumer.bisecting import Bisecting
from mld.consumer.checkpoint_range import Write
from mld.consumer.checkpoints import ShardCheckpoints
from mld.consumer.dead_letters import dead_letter_of
from mld.consumer.parts import PlacedRecord, records_of
from mld.consumer.ports import ChildStartError, ConsumerParts
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

JITTER_SHARE = 0.2  # spreads the restarts of many shards that fail for one common reason

RESTART_REASONS: Mapping[type[Exception], str] = {
    ChildStartError: "start",  # it could not be started
    ProcessorGoneError: "exit",  # it ended, or closed its pipes
    ProcessorSilentError: "timeout",  # it did not answer, or read, in time
    ProcessorError: "protocol",  # it said what it may not
}
"""Why a child has to be started again, in one word."""

_EXCEPTION = re.compile(
    r"(?:Caused by: |Exception in thread \"[^\"]*\" |Uncaught |panic: |fatal error: |thread '[^']*'[^:]* panicked)*"
    r"(?:(?:[A-Za-z_]\w*[.:$]+)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b|(?<=panic: )|(?<=panicked)|(?<=error: ))"
)
"""How the line begins that names the exception a program of Python, Java, Node, Ruby, Go or Rust dies of."""


def gives_up(child: ChildSettings, failures: int) -> bool:
    """Return whether this many failures in a row under this worker are too many."""
    return child.failures_max is not None and failures > child.failures_max


def delay_s(child: ChildSettings, failures: int, rng: Random) -> float:
    """Return the seconds to wait before the next start after `failures` failures in a row; 0 counts as 1."""
    exponential = child.restart_backoff_s * 2.0 ** min(max(0, failures - 1), 30)
    longest_s = max(child.restart_pause_max_s, child.restart_backoff_s)
    return min(exponential, longest_s) * (1 + JITTER_SHARE * rng.random())


class Failures:
    """One per consumer."""

    def __init__(self, held: HeldLease, parts: ConsumerParts, settings: ChildSettings) -> None:
        self._key = held.lease.key
        self._sender = parts.source_of(held.lease).sender
        self._shard_id = held.lease.shard_id
        self._token = held.token
        self._parts = parts
        self._settings = settings
        self._search = Bisecting(settings.poison_attempts or 0)
        self.count = 0  # without checkpoint progress, those of earlier owners included
        self._here = 0  # of these in our hands
        self._level = 0  # how long the pauses have become
        self._since_s = 0
        self._is_noted = False  # on the row
        self._owed: Position | None = None  # up to where failed processors had records
        self._asked_before: Position | None = None
        self._candidate: PlacedRecord | None = None
        self._last_words: Sequence[str] = ()
        self._dead_letters = 0
        self.why = ""

    def adjust(self, settings: ChildSettings) -> None:
        """Judge by other settings from now on; what was counted stays."""
        self._settings = settings

    # --- what happens -------------------------------------------------------------------------------------------------

    def resume(self, lease: Lease) -> None:
        """Continue the count of the last owner, unless there was progress since, or we are counting already."""
        note = lease.failing_now
        if note is None or self.count:
            return
        self.count = self._level = note.failures
        self._since_s = note.since_s
        self._is_noted, self._owed = True, note.first
        if note.first is not None:
            self._search = self._search.resumed(note.first, note.attempts)

    def moved(self, checkpoint: Position) -> None:
        """Note that the processor has checkpointed."""
        self._recover()
        self.count = self._here = self._level = 0
        self._asked_before = None
        self._search = self._search.moved(checkpoint)

    def accepted(self, last: Position | None) -> None:
        """Note that the processor has answered for a batch up to `last`."""
        if last is not None:
            self._search = self._search.passed(last)

    def caught_up(self, answered: Position, checkpoint: Position) -> bool:
        """Return whether a shard that failed works again: its new processor has answered for all that failed ones had.

        What was counted stays until it checkpoints, so that one that dies whenever it is idle is not started without
        pauses.
        """
        if not self._is_noted or (self._owed is not None and answered < self._owed):
            return False
        self._recover()
        self._parts.keeper.note_failing(self._key, self._token, Failing(0, self._since_s, checkpoint))
        return True

    def _recover(self) -> None:
        if self._is_noted and self._here > 1:
            log.info("shard recovered", extra=about("shard_recovered", self._key, failures=self.count))
            self._parts.metrics.events.note(EventKind.RECOVERED, f"after {self.count} failures", shard=self._key)
        self._is_noted, self._owed = False, None

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
        """Note that the processor has failed while it had `batch`, which came after `before`; None: it had none.

        `delivered` is the furthest record it was given. `is_next`: everything before the batch is checkpointed.
        """
        self._is_noted, self._owed = True, max(delivered, self._owed or delivered)
        self.why, self._last_words, self._candidate = why, last_words, None
        self._since_s = self._since_s if self.count else int(self._parts.clock.wall())
        self.count += 1
        self._here += 1
        is_narrowed = False
        if batch is not None:
            is_narrowed = await self._note_batch(checkpoint, batch, before, is_next=is_next)
        self._level += not is_narrowed
        attempts, first = self._search.attempts, self._search.first
        note = Failing(self.count, self._since_s, checkpoint, attempts if first else 0, first)
        self._parts.keeper.note_failing(self._key, self._token, note)

    async def _note_batch(self, checkpoint: Position, batch: ChildBatch, before: Position, *, is_next: bool) -> bool:
        """Return whether the failure narrows a search: the next one will be of fewer records."""
        handed = await records_of(batch)
        good = max(before, checkpoint)
        open_records = [record for record in handed if record.position > good]
        if not open_records:
            return False  # it had checkpointed everything it was given
        first, last = open_records[0].position, open_records[-1].position
        is_next_alone = len(handed) == 1 and is_next
        was_searching = self._search.is_searching
        self._search = self._search.failed(good, first, last, is_next_alone=is_next_alone)
        if self._search.culprit is not None:
            self._candidate = open_records[0]
        return was_searching and not is_next_alone

    # --- what to do ---------------------------------------------------------------------------------------------------

    @property
    def is_too_much(self) -> bool:
        return gives_up(self._settings, self._here)

    @property
    def is_searching(self) -> bool:
        """Whether batches are to be delivered in parts."""
        return self._search.is_searching

    def next_part(self, checkpoint: Position, delivered: Position, rest: Sequence[PlacedRecord]) -> int | None:
        """Return how many of the records to deliver next; None: first let the processor checkpoint what it has had.

        It is asked to once for each record.
        """
        positions = [record.position for record in rest]
        needed = self._search.needs_checkpoint(checkpoint, delivered, positions)
        if needed and self._asked_before != positions[0]:
            self._asked_before = positions[0]
            return None
        return self._search.take(positions)

    async def set_aside_candidate(self, stopping: Stopping, checkpoints: ShardCheckpoints) -> bool:
        """Write the record that was found to the dead letter and move past it. False if there is none, or in doubt."""
        if self._candidate is None:
            return False
        assert self._parts.letters is not None, "nothing is searched for without a place for it"
        position, framed = self._candidate
        framed = framed.as_it_came()
        attempts = self._search.attempts
        dead_letter = dead_letter_of(
            framed,
            self._shard_id,
            self._sender,
            self._parts.clock.wall(),
            attempts=attempts,
            why=self.why,
            stderr=self._last_words,
        )
        fields = {"position": str(position), "attempts": attempts}
        try:
            place = await stopping.unless(self._parts.letters.put(dead_letter))
        except DeadLetterError as error:
            log.error("record %s stays: %s", position, error, extra=about("letter_failed", self._key, **fields))
            return False
        if place is None or checkpoints.range.resolve(position.sequence, position.sub) != Write(position):
            return False
        if await checkpoints.store(position) is not None:
            return False
        self._search = self._search.set_aside(position)
        self._candidate = None
        self.count = self._here = 0
        self._dead_letters += 1
        fields |= {"place": place, "letters": self._dead_letters}
        log.error("record %s is set aside: %s", position, place, extra=about("record_set_aside", self._key, **fields))
        return True

    def pause_s(self) -> float:
        """Log and return the pause before the next start."""
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


def in_words(error: Exception, ended: str, last_words: Sequence[str]) -> str:
    """Return what went wrong, and how the child ended.

    The exception of which a child died comes first. Any other line of its stderr may have nothing to do with it, so the
    last one comes at the end.
    """
    died = isinstance(error, ProcessorGoneError)
    words = [word.strip() for word in last_words if word.strip()]
    cause = next((word for word in reversed(words) if _EXCEPTION.match(word)), None) if died else None
    if cause is not None:
        return f"{cause} ({ended})"
    what = ended if died and words else f"{error} ({ended})"
    return f"{what}; last on stderr: {words[-1]}" if words else what
