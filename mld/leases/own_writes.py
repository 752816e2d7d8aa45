"""Our own writes of a lease row, several of which may be under way at once: what they may have made of it. Pure.

Rules: leases#overlapping-writes, leases#lost-replies, leases#duplicate-worker-ids.

A renewal that waits for its answer keeps nobody from sending the next one. Each write raises the counter by one, on
condition that the counter is one that our writes before it may have left: from the counter last seen (`over`) to that
and one for each write that may yet be applied (`up_to`). So a write is refused neither because one before it was
applied, nor because one before it was not. It is over as soon as the row is seen beyond `up_to`.

    n     the counter last seen
    n..k  where the row may stand when the next write arrives: k - n writes of ours may be applied before
    c     `ceiling`: the highest counter that our writes explain

`ceiling` is raised by each write that is sent, lowered by each that is known not to have been applied. A row beyond it
was written by a twin, another process with our worker id. While an outcome is unknown a write of a twin may pass for
ours; once all are known the count is exact, be it by the word that a write of ours was not applied. What was never ours
is never called a twin's, and the reverse of that is given up only for as long as answers are missing. The last counter
is kept when all is known: who sends over an older look is refused because of us, and not because of a twin. A holding
begins without suspicion: what a former process under our id had on its way is nobody's fault.

A checkpoint names the positions that it may replace: the one seen, and those of our own that may be stored by now. So
one that was late can never undo a later one, though the counter would admit it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mld.core.positions import Position
from mld.leases.lease import Lease

OPEN_MAX = 24
"""Writes of a row that may be applied one after the other: more answers than that are not waited for."""


@dataclass(frozen=True, slots=True)
class Span:
    """What a write finds if nobody else has written: a counter in a range, one of some checkpoints."""

    over: int
    up_to: int
    replaces: frozenset[Position] = frozenset()
    """Beside the one seen. Of no meaning while the counter is exact."""

    @classmethod
    def exactly(cls, lease: Lease) -> Span:
        """Return the span of a row that no write of ours is on the way to."""
        return cls(lease.counter, lease.counter)

    @property
    def is_exact(self) -> bool:
        return self.over == self.up_to


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A write that was sent at `at` (monotonic), perhaps with a checkpoint."""

    at: float
    span: Span
    position: Position | None = None
    is_old: bool = False
    """Whether our writes had raised the counter beyond the look that it was sent over."""


@dataclass(frozen=True, slots=True)
class RowShown:
    """A row of ours, and from when the write that was accepted counts; None if it has changed nothing."""

    row: Lease
    sent_at: float
    counts_from: float | None


class _Row:
    """Our writes of one row."""

    __slots__ = ("ceiling", "counter", "is_of_twin", "unknown", "waiting")

    def __init__(self, counter: int) -> None:
        self.counter = self.ceiling = counter
        self.is_of_twin = False
        """Whether our writes do not explain the counter that was seen, which the next answer tells."""
        self.waiting: list[Sent] = []
        self.unknown: Counter[tuple[int, Position | None]] = Counter()
        """Writes without an answer that may yet be applied, by the end of their spans and what they store."""

    def saw(self, counter: int) -> None:
        """Note the row as it was read: what could be applied only over a lower counter is over."""
        if counter != self.counter:
            self.counter, self.is_of_twin = counter, False
            self.unknown = Counter({one: count for one, count in self.unknown.items() if one[0] >= counter})
        pending = self.pending(counter)
        self.ceiling = min(self.ceiling, pending) if self.ceiling >= counter else pending

    def pending(self, counter: int) -> int:
        """Return where all writes that may yet be applied would leave a row that stands at `counter`."""
        return counter + len(self.waiting) + self.unknown.total()

    def span(self) -> Span:
        """Return what the next write may find."""
        open_ones = [(sent.span.up_to, sent.position) for sent in self.waiting] + list(self.unknown.elements())
        live = [position for up_to, position in open_ones if up_to >= self.counter]
        reach = min(self.ceiling, self.counter + min(len(live), OPEN_MAX - 1))
        return Span(self.counter, reach, frozenset(position for position in live if position is not None))


class OwnWrites:
    """Our writes of each row, which may outlive the holding that sent them."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._told: dict[str, int] = {}
        """The counter of each row whose writes are all known, so that an older look is told from a twin's write."""

    def waiting(self, key: str) -> int:
        """Return how many writes of the row wait for their answers."""
        return len(self._rows[key].waiting) if key in self._rows else 0

    def newest_at(self, key: str) -> float | None:
        """Return when the newest of the writes that wait for an answer was sent."""
        waiting = self._rows[key].waiting if key in self._rows else ()
        return waiting[-1].at if waiting else None

    def sent_at(self, key: str) -> list[float]:
        """Return when the writes were sent that wait for their answers, in order."""
        return [one.at for one in self._rows[key].waiting] if key in self._rows else []

    def send(self, seen: Lease, at: float, position: Position | None = None) -> Sent:
        """Note that a write is sent over the row as `seen`; returns what it may find."""
        row = self._rows.setdefault(seen.key, _Row(max(seen.counter, self._told.pop(seen.key, 0))))
        if seen.counter < row.counter:  # an older look, which says nothing of what we have written since
            sent = Sent(at, Span.exactly(seen), position, is_old=True)
        else:
            row.saw(seen.counter)
            sent = Sent(at, row.span(), position)
        row.waiting.append(sent)
        row.ceiling += 1
        return sent

    def begin(self, key: str) -> None:
        """Note that a holding begins: how often others have written until now is not held against them."""
        row = self._rows.get(key)
        if row is not None:
            row.ceiling, row.is_of_twin = row.pending(row.counter), False
            self._tidy(key, row)

    def failed(self, key: str, sent: Sent, *, may_be_applied: bool) -> None:
        """Note that there is no answer, or one that says that nothing was written."""
        row = self._ended(key, sent)
        if row is None:
            return
        if not may_be_applied:
            row.ceiling -= 1
            row.is_of_twin |= row.counter > row.ceiling
        elif sent.span.up_to >= row.counter:
            row.unknown[sent.span.up_to, sent.position] += 1
        self._tidy(key, row)

    def answered(self, key: str, sent: Sent, counter: int, *, accepted: bool) -> bool:
        """Note the row's counter from an answer; False if our writes do not explain it, or a higher one seen before."""
        row = self._ended(key, sent)
        if row is None:
            return True
        if accepted and sent.is_old:  # nothing raises a counter back to it: the row was made again
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
        """Note that the row is not ours any more: nothing of unknown outcome can be applied to it."""
        row = self._ended(key, sent)
        if row is not None:
            row.unknown.clear()
            row.is_of_twin = False
            self._tidy(key, row)

    def forget(self) -> None:
        """Forget all writes: their table is gone. Answers that come later explain themselves."""
        self._rows.clear()
        self._told.clear()

    def _ended(self, key: str, sent: Sent) -> _Row | None:
        """Return the row of a write that does not wait any more; None if that was forgotten."""
        row = self._rows.get(key)
        if row is None or sent not in row.waiting:
            return None
        row.waiting.remove(sent)
        return row

    def _tidy(self, key: str, row: _Row) -> None:
        if not row.waiting and not row.unknown and not row.is_of_twin:
            self._told[key] = row.counter
            del self._rows[key]
