"""`SafePrefix`: up to where every record of a shard was checkpointed by the child that had it. Pure.

Rule: parallel#safe-prefix. Several children share the records of one shard, each in its own time. The lease row has
room for one position, and that position says: nothing before it has to be delivered again. So it may only be::

    records in order      1  2  3  4  5  6  7  8
    given to child        a  b  a  c  b  a  c  b
    a has checkpointed    ---------------- 6            a: 1, 3 and 6 are done
    b has checkpointed    - 2                           b: 2 is done, 5 and 8 are open
    c has checkpointed    ------------------- 7         c: 4 and 7 are done
    safe prefix                       ^                 4: record 5 is the first one that is open

The first open record of any child ends the prefix, whatever the other children have done after it. The prefix is the
record before it in the order of the shard. A child that was given nothing has no open record, and holds nobody back.

Only the front is ever looked at: `given` adds records at the end of a queue, and `advance` takes those from the front
that their own child has checkpointed. Each record is looked at once, so that a checkpoint costs as much as the records
that it frees, and the queue holds what was given and is not safe yet.

A child that checkpoints rarely, or never, would make that queue grow with the shard. So single records are kept up to
`RECORDS_MAX`. What is given beyond that is kept as one `Stretch` for a whole page: it is done when each child has
checkpointed the last record that it has of it, and the prefix moves over it in one step. Beyond `STRETCHES_MAX` of them
two neighbours become one. A stretch can only keep the prefix back for longer, never let it pass an open record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mld.core.positions import SHARD_END, Position
from mld.core.steps import Steps
from mld.protocol.sharing import SharedRecord, by_position

RECORDS_MAX = 10_000  # as many as a page may have; some 1.5 MB
STRETCHES_MAX = 256


def position_of(record: SharedRecord) -> Position:
    return Position(record[0].decode(), record[1])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records that follow each other in the shard: the last one of all, and that of each child that has any."""

    last: SharedRecord
    last_of: Mapping[int, SharedRecord]

    def joined(self, following: Stretch) -> Stretch:
        """Return both as one."""
        return Stretch(following.last, {**self.last_of, **following.last_of})


class SafePrefix:
    """The records of one shard that its children have and have not checkpointed. Children count from 0.

    `position` is the prefix as `advance` found it last: SHARD_END once all children have checkpointed the end and no
    record is open.
    """

    def __init__(self, children: int, checkpoint: Position) -> None:
        self.position = checkpoint
        self._open: deque[SharedRecord] = deque()
        self._stretches: deque[Stretch] = deque()
        """What was given after all records of `_open`."""
        self._confirmed = [(-1, 0)] * children
        self._ended: set[int] = set()

    @property
    def kept(self) -> int:
        """The number of records and stretches that were given and are not in the prefix."""
        return len(self._open) + len(self._stretches)

    def given(self, records: Sequence[SharedRecord], last_of: Mapping[int, SharedRecord]) -> None:
        """Note that children get these records of a page, which come after all earlier ones, in the order of the shard.
        `last_of` has the last one of each child that gets any.
        """
        if not self._stretches and len(self._open) + len(records) <= RECORDS_MAX:
            self._open.extend(records)
            return
        self._stretches.append(Stretch(records[-1], last_of))
        if len(self._stretches) > STRETCHES_MAX:
            pairs = zip(*[iter(self._stretches)] * 2, strict=False)
            odd_one = [self._stretches[-1]] if len(self._stretches) % 2 else []
            self._stretches = deque([first.joined(second) for first, second in pairs] + odd_one)

    def confirmed(self, child: int, position: Position) -> None:
        """Note that a child has checkpointed what it had up to `position`; `advance` tells what follows from it."""
        if position.is_shard_end:
            self._ended.add(child)
        elif position.number is not None:
            self._confirmed[child] = max(self._confirmed[child], (position.number, position.sub))

    def advance(self) -> Steps[Position]:
        """Let the prefix go as far as it can. Returns it. Records may be given and confirmed between two steps."""
        while self._open and self._is_done(self._open[0]):
            self.position = position_of(self._open.popleft())
            yield
        while not self._open and self._stretches and self._is_over(self._stretches[0]):
            self.position = position_of(self._stretches.popleft().last)
            yield
        if not self.kept and len(self._ended) == len(self._confirmed):
            self.position = SHARD_END
        return self.position

    def _is_over(self, stretch: Stretch) -> bool:
        return all(map(self._is_done, stretch.last_of.values()))

    def _is_done(self, record: SharedRecord) -> bool:
        child = record[2]
        return child in self._ended or by_position(record) <= self._confirmed[child]
