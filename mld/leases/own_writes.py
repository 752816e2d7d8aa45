"""`OwnWrites`: keeps our own writes of each lease row, of which several may be under way at once, and computes the
counters and checkpoints that they may have left in the row. Pure.

Rules: leases#overlapping-writes, leases#lost-replies, leases#duplicate-worker-ids.

The next renewal may be sent while earlier ones still wait for their answers. Each write raises the counter by one. A
write is conditional on a range of counters, its *span*: all counters that our earlier writes may have left in the row.
The range begins with the counter last seen (`over`). It ends with that counter plus one for each *open* write
(`up_to`): one that is unanswered, or whose outcome is unknown, so that it may yet be applied. So a write succeeds
whether or not the earlier writes were applied. As soon as the row is seen with a counter above `up_to`, the write can
no longer be applied.

For example, the row was last seen with counter 7, and two writes are open. Then the next write accepts 7, 8 and 9. If
all three writes are applied, the counter is 10.

`ceiling` is the highest counter that the row can have if only this process wrote it: 10 in the example. Each write that
is sent raises `ceiling` by one; each write that is known not to have been applied lowers it by one. If the counter in
the row is above `ceiling`, another process with our worker id wrote the row: a *twin*. While the outcome of a write of
ours is unknown, a twin's write may be taken for it. The reverse never happens: our own write is never taken for a
twin's.

When no write of a row is open, its last counter is still remembered. That is needed if a caller bases a write on a read
of the row that was made before our last write: the write is refused, and the higher counter in the row must not be
taken for a twin's. When a new holding begins, any counter is accepted: an earlier process with our id may have had
writes under way, and these do not prove that a twin runs.

A checkpoint names the positions that it may replace: the position in the row as last seen, and the positions of our own
checkpoints that may be stored by now. So a delayed checkpoint can never undo a later one, although its range of
counters would allow it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mld.core.positions import Position
from mld.leases.lease import Lease

OPEN_MAX = 24
"""How many writes of one row may be open at a time."""


@dataclass(frozen=True, slots=True)
class Span:
    """The states in which a write may find the row, if only this process has written it: a counter from `over` to
    `up_to`, and the checkpoint last seen or one of `replaces`.
    """

    over: int
    up_to: int
    replaces: frozenset[Position] = frozenset()
    """Checkpoints that the row may have besides the one last seen. Not used if the counter is exact."""

    @classmethod
    def exactly(cls, lease: Lease) -> Span:
        """Return the span for a write of a row if no other write of ours is open."""
        return cls(lease.counter, lease.counter)

    @property
    def is_exact(self) -> bool:
        return self.over == self.up_to


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A write that was sent at `at` (monotonic seconds); `position` is the checkpoint that it stores, if any."""

    at: float
    span: Span
    position: Position | None = None
    is_old: bool = False
    """Whether the write is based on a read of the row that was made before our own last write."""


@dataclass(frozen=True, slots=True)
class RowShown:
    """A row of ours as an answer showed it. `counts_from` is the time from which the accepted write counts; None if
    nothing was written.
    """

    row: Lease
    sent_at: float
    counts_from: float | None


class _Row:
    """Our writes of one row."""

    __slots__ = ("ceiling", "counter", "is_of_twin", "unknown", "waiting")

    def __init__(self, counter: int) -> None:
        self.counter = self.ceiling = counter
        self.is_of_twin = False
        """Whether a counter was seen that our writes do not explain. The answer to the next write reports this."""
        self.waiting: list[Sent] = []
        """The unanswered writes, in the order in which they were sent."""
        self.unknown: Counter[tuple[int, Position | None]] = Counter()
        """How many writes have failed and may yet be applied, by `up_to` of their span and the checkpoint that they
        store.
        """

    def saw(self, counter: int) -> None:
        """Note the counter that was read from the row. Failed writes that need a lower counter can no longer be
        applied, and are forgotten. The ceiling falls to what the open writes can reach from this counter. If the
        counter is above the ceiling, because a twin wrote, the ceiling rises to that value.
        """
        if counter != self.counter:
            self.counter, self.is_of_twin = counter, False
            self.unknown = Counter({one: count for one, count in self.unknown.items() if one[0] >= counter})
        pending = self.pending(counter)
        self.ceiling = min(self.ceiling, pending) if self.ceiling >= counter else pending

    def pending(self, counter: int) -> int:
        """Return the counter that the row has if it is at `counter` now and all open writes are then applied."""
        return counter + len(self.waiting) + self.unknown.total()

    def span(self) -> Span:
        """Return the span for the next write: from the counter last seen to the counter that the row has if all open
        writes that can still be applied are applied, but not above the ceiling.
        """
        open_ones = [(sent.span.up_to, sent.position) for sent in self.waiting] + list(self.unknown.elements())
        live = [position for up_to, position in open_ones if up_to >= self.counter]
        reach = min(self.ceiling, self.counter + min(len(live), OPEN_MAX - 1))
        return Span(self.counter, reach, frozenset(position for position in live if position is not None))


class OwnWrites:
    """Our open writes of each row. They may outlive the holding that sent them."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._last_counters: dict[str, int] = {}
        """The last counter of each row without open writes. A write that is based on a lower counter is based on an old
        read of the row."""

    def waiting(self, key: str) -> int:
        """Return how many writes of the row are unanswered."""
        return len(self._rows[key].waiting) if key in self._rows else 0

    def newest_at(self, key: str) -> float | None:
        """Return when the newest unanswered write of the row was sent; None if no write is unanswered."""
        waiting = self._rows[key].waiting if key in self._rows else ()
        return waiting[-1].at if waiting else None

    def sent_at(self, key: str) -> list[float]:
        """Return the send times of the unanswered writes of the row, in order."""
        return [one.at for one in self._rows[key].waiting] if key in self._rows else []

    def send(self, seen: Lease, at: float, position: Position | None = None) -> Sent:
        """Note that a write based on the row as `seen` is sent; return the write with its span. If a later state of the
        row is known already, the span is exactly the older row, so that the table refuses the write.
        """
        row = self._rows.setdefault(seen.key, _Row(max(seen.counter, self._last_counters.pop(seen.key, 0))))
        if seen.counter < row.counter:  # read before our own last write
            sent = Sent(at, Span.exactly(seen), position, is_old=True)
        else:
            row.saw(seen.counter)
            sent = Sent(at, row.span(), position)
        row.waiting.append(sent)
        row.ceiling += 1
        return sent

    def begin(self, key: str) -> None:
        """Note that a holding begins. Whatever counter the row has now, it does not show that a twin runs."""
        row = self._rows.get(key)
        if row is not None:
            row.ceiling, row.is_of_twin = row.pending(row.counter), False
            self._tidy(key, row)

    def failed(self, key: str, sent: Sent, *, may_be_applied: bool) -> None:
        """Note that a write failed. With `may_be_applied` its outcome is unknown; else it was certainly not applied."""
        row = self._ended(key, sent)
        if row is None:
            return
        if not may_be_applied:
            row.ceiling -= 1
            row.is_of_twin |= row.counter > row.ceiling  # only this write could have explained the counter
        elif sent.span.up_to >= row.counter:
            row.unknown[sent.span.up_to, sent.position] += 1
        self._tidy(key, row)

    def answered(self, key: str, sent: Sent, counter: int, *, accepted: bool) -> bool:
        """Note the row's counter as the answer to a write shows it. `accepted`: the write was applied. Return False if
        our writes do not explain this counter, or a higher one that was seen before.
        """
        row = self._ended(key, sent)
        if row is None:
            return True
        if accepted and sent.is_old:  # counters never fall, so the row must have been deleted and created again
            del self._rows[key]
            return True
        if not accepted:
            row.ceiling -= 1
        newest = max(counter, row.counter)
        explained = newest <= row.ceiling and not row.is_of_twin
        row.is_of_twin = False
        row.saw(newest)
        self._tidy(key, row)
        return explained

    def gone(self, key: str, sent: Sent) -> None:
        """Note that an answer shows that the row is not ours any more, so that no open write can be applied to it."""
        row = self._ended(key, sent)
        if row is not None:
            row.unknown.clear()
            row.is_of_twin = False
            self._tidy(key, row)

    def forget(self) -> None:
        """Forget all writes, because their table is gone. Later answers to them are accepted without a check."""
        self._rows.clear()
        self._last_counters.clear()

    def _ended(self, key: str, sent: Sent) -> _Row | None:
        """Remove a write from the unanswered ones; return its row, or None if the row was forgotten."""
        row = self._rows.get(key)
        if row is None or sent not in row.waiting:
            return None
        row.waiting.remove(sent)
        return row

    def _tidy(self, key: str, row: _Row) -> None:
        """Replace what is known of a row by its last counter if the row has no open writes."""
        if not row.waiting and not row.unknown and not row.is_of_twin:
            self._last_counters[key] = row.counter
            del self._rows[key]
