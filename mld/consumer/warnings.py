"""Warnings of one shard. `Overdue` warns when a child takes long over one request: how long, since when it has been
silent, and what it holds.

It ends nothing; `timeoutInSeconds` does. The first warning comes after `logWarningForTaskAfterMillis`, the next each
time the duration has doubled, at least one an hour. A request that is answered in time costs two assignments: its
child's timer is not reset with each request, but looks, when it fires, at what is under way by then.

`AggregateReports`: the KPL aggregates whose user records a child did not get, malformed ones and those of another
shard. Rules: retrieval#hash-range-rule and retrieval#malformed-aggregates. An aggregate that is malformed, or beyond
the limits of `retrieval.kpl`, is delivered as it came; a broken producer may send nothing else. An aggregate with a
user record outside the shard's hash range is not delivered at all. A producer that packed it before a reshard sends its
records again, so nothing is lost. A producer that packs aggregates by rules of its own, or under wrong keys, loses them
for good; Java says nothing. Both kinds are counted, and logged at most once a minute.

Partition keys may be personal data: only the length of a key and the first digits of its hash key are logged, which
show whose shard it belongs to and can be compared with a known key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from mld.core.clock import Clock
from mld.core.log_fields import about
from mld.core.streams import ChildBatch, HashRange, Misrouted
from mld.metrics.instruments import Tally
from mld.properties.settings import ChildSettings

log = logging.getLogger(__name__)

T = TypeVar("T")

REPEAT_MIN_S = 1.0  # if the first duration is 0; Java looks once a second
REPEAT_MAX_S = 3600.0  # any hour of the log shows it
TIMER_SLACK_S = 0.001  # a timer may fire slightly early, and must not be set again for that

Holds = Callable[[], Mapping[str, object]]
"""What the child is working on, as fields of the log; called only for a warning."""

REPORT_INTERVAL_S = 60.0  # a wrong producer misroutes every aggregate it makes
HASH_KEY_BITS = 128
SHOWN_BITS = 32

MALFORMED = "%d KPL aggregates cannot be opened (%s); they were delivered as they came: their producer must be repaired"
MISROUTED = (
    "%d user records were not delivered, because their aggregates do not belong to this shard: %s. A producer that "
    "packed them before a reshard sends them again; if there was none, it packs them wrongly"
)


def next_warning_s(running_s: float) -> float:
    """Return the age at which to warn again about a request that was warned about at `running_s`."""
    return running_s + min(max(running_s, REPEAT_MIN_S), REPEAT_MAX_S)


class Overdue:
    """Watches the requests of one child, one at a time."""

    def __init__(self, clock: Clock, shard_id: str, child: str, settings: ChildSettings) -> None:
        self._clock = clock
        self._shard_id = shard_id
        self._child = child
        self._first_s = self._due_s = settings.warn_after_s
        self._is_bounded = settings.reply_timeout_s is not None
        self._request: str | None = None
        self._holds: Holds = dict
        self._began_s = self._heard_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_storing = False
        """Its checkpoint is being written: the child waits for us."""
        self.refused: str | None = None
        """What it wrote last, since the request, that looks like a message and is none."""

    def adjust(self, settings: ChildSettings) -> None:
        """Warn by these settings from now on; a request that was warned of is not warned of again for that."""
        was_warned, first_s = self._due_s != self._first_s, settings.warn_after_s
        self._is_bounded = settings.reply_timeout_s is not None
        if first_s == self._first_s:
            return
        self._first_s = first_s
        if was_warned:
            return
        self._due_s = first_s
        self._forget_timer()
        if self._request is not None:
            self._look_after(max(0.0, first_s - (self._clock.monotonic() - self._began_s)))

    def begin(self, request: str, holds: Holds) -> None:
        """Note that the child gets a request."""
        self._request, self._holds, self.refused = request, holds, None
        self._began_s = self._heard_s = self._clock.monotonic()
        self._due_s = self._first_s
        if self._timer is None:
            self._look_after(self._first_s)

    def heard(self) -> None:
        """Note that the child has sent a valid message."""
        self._heard_s = self._clock.monotonic()

    def end(self) -> None:
        """Note that the request is answered, or given up."""
        self._request, self._holds = None, dict
        if self._due_s != self._first_s:  # it was warned of, and the timer waits for its next warning
            self._forget_timer()

    def close(self) -> None:
        """Stop watching: there will be no more requests."""
        self.end()
        self._forget_timer()

    def _forget_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _look_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._request is None:
            return
        running_s = self._clock.monotonic() - self._began_s
        if running_s >= self._due_s - TIMER_SLACK_S:
            self._warn(self._request, running_s)
            self._due_s = next_warning_s(running_s)
        self._look_after(self._due_s - running_s)

    def _warn(self, request: str, running_s: float) -> None:
        silent_s = self._clock.monotonic() - self._heard_s
        held = dict(self._holds())
        if self.is_storing:
            state = "the lease table has not answered its checkpoint yet"
        elif self._is_bounded:
            state = f"it is silent for {silent_s:.0f} s"
        else:
            state = f"it is silent for {silent_s:.0f} s, and without timeoutInSeconds nothing ends it"
        if self.refused is not None:
            state += f"; it wrote a line that is no message: {self.refused}"
        holding = f"; it holds {', '.join(f'{name} {value}' for name, value in held.items())}" if held else ""
        log.warning(
            "the child takes longer than %.0f s over %s: %s%s",
            running_s,
            request,
            state,
            holding,
            extra=about(
                "slow_task",
                self._shard_id,
                child=self._child,
                request=request,
                running_s=round(running_s, 1),
                silent_s=round(silent_s, 1),
                **held,
            ),
        )


class SeenAggregates(Generic[T]):
    """Aggregates of one kind; each is counted once, however often its batch is read."""

    def __init__(self, action: str, counted: str, message: str) -> None:
        self.action = action
        self.counted = counted
        """What a report counts: the aggregates, or their user records."""
        self.message = message
        self.aggregates = 0
        self.count = 0
        self.reported = 0
        self.example = ""  # the latest
        self._last = -1  # the highest sequence number that was counted

    def fresh(self, found: Mapping[str, T]) -> dict[int, T]:
        """Return those that are not counted yet, by sequence number, and count them."""
        numbered = {int(sequence): what for sequence, what in found.items() if int(sequence) > self._last}
        self.aggregates += len(numbered)
        self._last = max(numbered, default=self._last)
        return numbered


class AggregateReports:
    """The reports of one shard while one consumer serves it; `dropped` counts the aggregates, too."""

    def __init__(self, shard_id: str, dropped: Tally | None = None) -> None:
        self._dropped = Tally() if dropped is None else dropped
        self._malformed = SeenAggregates[str]("aggregate_malformed", "aggregates", MALFORMED)
        self._misrouted = SeenAggregates[Misrouted]("aggregate_misrouted", "user_records", MISROUTED)
        self._shard_id = shard_id
        self._timer: asyncio.TimerHandle | None = None

    def note(self, batch: ChildBatch, hash_range: HashRange | None) -> None:
        """Count what a batch shows that was delivered, or is empty; `hash_range` is the lease's."""
        if not batch.malformed and not batch.misrouted:
            return
        if malformed := self._malformed.fresh(batch.malformed):
            last = max(malformed)
            self._malformed.example = f"record {last}: {malformed[last]}"
            self._malformed.count += len(malformed)
            self._dropped.add("malformed", len(malformed))
        if misrouted := self._misrouted.fresh(batch.misrouted):
            last = max(misrouted)
            self._dropped.add("range", len(misrouted))
            self._misrouted.example = _example(last, misrouted[last], hash_range)
            self._misrouted.count += sum(found.user_records for found in misrouted.values())
        if self._timer is None:
            self._report()

    def close(self) -> None:
        """Log what was not logged yet."""
        if self._timer is not None:
            self._report()
            self._cancel()

    def _report(self) -> None:
        """Log what is new, and then nothing for a minute; a minute without news ends the reports."""
        self._cancel()
        news = [seen for seen in (self._malformed, self._misrouted) if seen.count > seen.reported]
        for seen in news:
            fresh, seen.reported = seen.count - seen.reported, seen.count
            fields = {seen.counted: fresh, f"{seen.counted}_total": seen.count, "aggregates_total": seen.aggregates}
            log.warning(seen.message, fresh, seen.example, extra=about(seen.action, self._shard_id, **fields))
        if news:
            self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL_S, self._report)

    def _cancel(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _example(sequence: int, found: Misrouted, hash_range: HashRange | None) -> str:
    source = "explicit hash key" if found.is_explicit else f"hash of a partition key of {found.key_bytes} bytes"
    within = "" if hash_range is None else f", outside {_shown(hash_range.start)} to {_shown(hash_range.end)}"
    return f"record {sequence}/{found.sub_sequence} has the hash key {_shown(found.hash_key)} ({source}){within}"


def _shown(hash_key: int) -> str:
    """Return the first digits of a hash key, in hexadecimal. An explicit one may lie outside of what a shard can
    have.
    """
    if not 0 <= hash_key < 1 << HASH_KEY_BITS:
        return "out of bounds"
    return f"0x{hash_key >> (HASH_KEY_BITS - SHOWN_BITS):08x}…"
