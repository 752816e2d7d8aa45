"""Sequence numbers: 56 digits, increasing over a whole stream, with the shard recoverable.

Layout, from the top: the version 2 at bit 184, the milliseconds of the stream's last change of shards at bit 128, a
counter of everything numbered in the stream at bit 40, the shard's index below. The first two never decrease and the
counter always increases, hence a child's first number is above its parent's last one, and the numbers of a stream that
was made again under the same name are above those of its predecessor.
"""

from __future__ import annotations

_VERSION_BIT = 184
_EPOCH_BIT = 128
_COUNTER_BIT = 40
_INDEX_MASK = (1 << 32) - 1
_VERSION = 2


def compose(epoch_ms: int, counter: int, shard_index: int) -> int:
    return _VERSION << _VERSION_BIT | epoch_ms << _EPOCH_BIT | counter << _COUNTER_BIT | shard_index


def shard_index(number: int) -> int | None:
    """Return the index of the shard a number was made for; None if the number is none of ours."""
    return number & _INDEX_MASK if number >> _VERSION_BIT == _VERSION else None


class Sequencer:
    """Gives out the numbers of one stream."""

    __slots__ = ("_counter", "_epoch_ms")

    def __init__(self, epoch_ms: int) -> None:
        self._epoch_ms = epoch_ms
        self._counter = 0

    def start_epoch(self, epoch_ms: int) -> None:
        """Note that shards change at this time; an earlier time than the last one is ignored."""
        self._epoch_ms = max(self._epoch_ms, epoch_ms)

    def take(self, index: int) -> int:
        """Return the next number, for the shard with this index."""
        self._counter += 1
        return compose(self._epoch_ms, self._counter, index)

    def tip(self, index: int) -> int:
        """Return a number of this shard that is above all given out before it and below all to come, except that it may
        equal the very last one."""
        return compose(self._epoch_ms, self._counter, index)
