"""Finds the leader of a 2.x fleet by Java's shuffle of the lease owners. Pure. Rule: coordination#shuffled-leader.

`JavaRandom` and `shuffle` have the same results as `java.util.Random` and `java.util.Collections.shuffle`, because
every worker of the fleet, Java or not, must find the same leader among the same owners.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

SEED = 1947
LEADERS = 1  # numPeriodicShardSyncWorkers, a constant of the Java library

_MULTIPLIER = 0x5DEECE66D
_INCREMENT = 0xB
_STATE_BITS = 48
_STATE_MASK = (1 << _STATE_BITS) - 1
_INT_BITS = 31


class JavaRandom:
    """The part of `java.util.Random` that a shuffle needs."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _STATE_MASK

    def next_int(self, bound: int) -> int:
        """Return the next `nextInt(bound)`: 0 <= result < bound, for 1 <= bound < 2**31. As in Java, numbers above the
        last multiple of `bound` are drawn again, so that all results are equally likely.
        """
        assert 0 < bound < 1 << _INT_BITS
        if bound & (bound - 1) == 0:  # a power of two: Java uses the high bits
            return (bound * self._next_31()) >> _INT_BITS
        while True:
            drawn = self._next_31()
            result = drawn % bound
            if drawn - result + (bound - 1) < 1 << _INT_BITS:
                return result

    def _next_31(self) -> int:
        """Return the next 31 random bits, as `next(31)` of Java."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _STATE_MASK
        return self._state >> (_STATE_BITS - _INT_BITS)


def shuffle(items: list[T], random: JavaRandom) -> None:
    """Shuffle in place as `Collections.shuffle(items, random)`."""
    for size in range(len(items), 1, -1):
        chosen = random.next_int(size)
        items[size - 1], items[chosen] = items[chosen], items[size - 1]


def java_order(text: str) -> bytes:
    """Return a sort key that orders strings as Java does, by UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def leaders(owners: Iterable[str]) -> frozenset[str]:
    """Return the workers that lead, from the owners of leases; empty if no lease has an owner."""
    order = sorted(set(owners), key=java_order)
    shuffle(order, JavaRandom(SEED))
    return frozenset(order[:LEADERS])


def leads(worker: str, elected: frozenset[str]) -> bool:
    """Return whether `worker` is a leader. While no lease has an owner, every worker is."""
    return not elected or worker in elected
