"""`SafePrefix`: the position up to which each record of a shard is checkpointed by the child that got it. Pure.

Rule: parallel#safe-prefix. Several children share the records of one shard, and each works at its own pace. The lease
row has room for only one position, and nothing up to that position will be delivered again. So the row may only have
the safe prefix::

    records in order      1  2  3  4  5  6  7  8
    given to child        a  b  a  c  b  a  c  b
    a has checkpointed    ---------------- 6            a: 1, 3 and 6 are done
    b has checkpointed    - 2                           b: 2 is done, 5 and 8 are open
    c has checkpointed    ------------------- 7         c: 4 and 7 are done
    safe prefix                       ^                 4: record 5 is the first one that is open

A record is open until its child has checkpointed it. The prefix ends before the first open record of any child,
whatever the other children have done after that record. A child that was given no records has no open record, and does
not hold the prefix back.

The records that were given and are not in the prefix yet are kept in a queue: `given` adds records at its end, and
`advance` removes records from its front as long as their own child has checkpointed them. Each record is examined about
once, so the cost of a checkpoint is proportional to the number of records that it adds to the prefix.

If a child checkpoints rarely, or never, the queue would grow without a limit. So at most `RECORDS_MAX` single records
are kept. Records given beyond that are kept as one `Stretch` for a whole page: it is done when each child has
checkpointed its last record of that page, and then the prefix moves past all of the page in one step. If there are more
than `STRETCHES_MAX` stretches, they are joined in pairs. A stretch may hold the prefix back for longer than single
records would, but never lets it pass an open record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from mld.core.positions import SHARD_END, Position
from mld.core.steps import Steps
from mld.protocol.sharing import SharedRecord, by_position

RECORDS_MAX = 10_000  # as many as a page may have; they take some 1.5 MB
STRETCHES_MAX = 256  # more are joined in pairs
STEP_RECORDS = 500  # examined between two yields, within a quarter of a millisecond


def position_of(record: SharedRecord) -> Position:
    """Return the position of a shared record, which has its sequence number as digits."""
    return Position(record[0].decode(), record[1])


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of consecutive records of the shard: the last of them, and for each child with records in it the last of
    its own.
    """

    last: SharedRecord
    last_of: Mapping[int, SharedRecord]

    def joined(self, following: Stretch) -> Stretch:
        """Return this stretch and the following one as one."""
        return Stretch(following.last, {**self.last_of, **following.last_of})


class SafePrefix:
    """Keeps the open records of a shard: those that its children got and have not checkpointed. Children count from 0.

    `position` is the prefix that `advance` last found. It is SHARD_END once all children have checkpointed the end and
    no record is open.
    """

    def __init__(self, children: int, checkpoint: Position) -> None:
        self.position = checkpoint
        self._open: deque[SharedRecord] = deque()  # records in order; the first one is open when `advance` is done
        self._stretches: deque[Stretch] = deque()
        """The records that were given after all those in `_open`."""
        self._confirmed = [(-1, 0)] * children
        """For each child, the sequence and sub-sequence number up to which it has checkpointed its records."""
        self._ended: set[int] = set()  # the children that have checkpointed the end of the shard

    @property
    def kept(self) -> int:
        """The number of records and stretches that were given and are not in the prefix."""
        return len(self._open) + len(self._stretches)

    def given(self, records: Sequence[SharedRecord], last_of: Mapping[int, SharedRecord]) -> None:
        """Note that children get these records of a page. They are in the order of the shard, after all earlier ones.
        `last_of` maps each child that gets any to the last of its records. Beyond `RECORDS_MAX` records, the page is
        kept as one stretch, and too many stretches are joined in pairs.
        """
        if not self._stretches and len(self._open) + len(records) <= RECORDS_MAX:
            self._open.extend(records)
            return
        self._stretches.append(Stretch(records[-1], last_of))
        if len(self._stretches) > STRETCHES_MAX:
            pairs = zip(*[iter(self._stretches)] * 2, strict=False)  # pairs of neighbours
            unpaired = [self._stretches[-1]] if len(self._stretches) % 2 else []
            self._stretches = deque([first.joined(second) for first, second in pairs] + unpaired)

    def confirmed(self, child: int, position: Position) -> None:
        """Note that a child has checkpointed its records up to `position`. The prefix moves only by `advance`."""
        if position.is_shard_end:
            self._ended.add(child)
        elif position.number is not None:
            self._confirmed[child] = max(self._confirmed[child], (position.number, position.sub))

    def advance(self) -> Steps[Position]:
        """Advance the prefix as far as possible and return it. Records may be given and confirmed between two steps."""
        while done := self._count_done():
            for _ in range(done - 1):
                self._open.popleft()
            self.position = position_of(self._open.popleft())
            yield
        while not self._open and self._stretches and self._is_over(self._stretches[0]):
            self.position = position_of(self._stretches.popleft().last)
            yield
        if not self.kept and len(self._ended) == len(self._confirmed):
            self.position = SHARD_END
        return self.position

    def _count_done(self) -> int:
        """Return how many of the first STEP_RECORDS open records come before the first one that is not done."""
        return sum(1 for _ in takewhile(self._is_done, islice(self._open, STEP_RECORDS)))

    def _is_over(self, stretch: Stretch) -> bool:
        """Return whether each child has checkpointed its last record of the stretch."""
        return all(map(self._is_done, stretch.last_of.values()))

    def _is_done(self, record: SharedRecord) -> bool:
        """Return whether the child that got the record has checkpointed it."""
        child = record[2]
        return child in self._ended or by_position(record) <= self._confirmed[child]
