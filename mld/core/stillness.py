"""`Stillness`: remembers how long each value has been unchanged, by the watcher's own clock. Pure.

The clocks of two machines never agree, so a worker shows that it is alive by changing values: the counter of a lease,
the version of a lock, the time in a report. A watcher reads such values again and again. A worker whose value stays the
same for longer than it promised counts as dead. Times are monotonic seconds, passed in.

    what a look shows             `since` is                          `has_moved`
    a key that is not known       the time of the look, `first_at`    no
                                  if the caller gives one
    the value that was seen last  as before                           as before
    any other value               the time of the look                yes

Any different value counts as a change, even a smaller one: a row may be restored, or made again in a new table. A
watcher that learns that a table is gone must forget the values that it saw there.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

NEVER = -math.inf
"""If this is passed as `first_at`, the value counts as unchanged for ever, because no worker is expected to change it.
"""


class _Seen(NamedTuple, Generic[V]):
    """A value, since when it has been the same, and whether it was ever seen to change."""

    value: V
    since: float
    has_moved: bool


class Stillness(Generic[K, V]):
    """The last seen value of each key, and since when it has been unchanged."""

    def __init__(self) -> None:
        self._seen: dict[K, _Seen[V]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._seen

    def __iter__(self) -> Iterator[K]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def saw(self, key: K, value: V, now: float, first_at: float | None = None) -> bool:
        """Note the value of a key, read at `now`, and return whether the key or its value is new.

        A key that is seen for the first time counts as unchanged since `first_at`, or else since `now`.
        """
        before = self._seen.get(key)
        if before is not None and before.value == value:
            return False
        since = now if before is not None or first_at is None else first_at
        self._seen[key] = _Seen(value, since, before is not None)
        return True

    def saw_all(self, values: Mapping[K, V], now: float) -> None:
        """Note the values of all keys that exist, read at `now`, and forget all other keys."""
        for key, value in values.items():
            self.saw(key, value, now)
        self.keep(values)

    def begin(self, key: K, value: V, since: float) -> None:
        """Store a value of a key as unchanged since `since`, and as if no other value had been seen before."""
        self._seen[key] = _Seen(value, since, False)

    def since(self, key: K) -> float:
        """Return the time at which a known key got its present value."""
        return self._seen[key].since

    def value(self, key: K) -> V | None:
        """Return the value that was seen last; None for an unknown key."""
        seen = self._seen.get(key)
        return None if seen is None else seen.value

    def has_moved(self, key: K) -> bool:
        """Return whether the key was seen with another value before."""
        return key in self._seen and self._seen[key].has_moved

    def is_still(self, key: K, now: float, for_s: float) -> bool:
        """Return whether the value has been unchanged for more than `for_s` seconds; False for an unknown key."""
        return key in self._seen and now - self._seen[key].since > for_s

    def keep(self, keys: Container[K]) -> None:
        """Forget all keys except these."""
        for key in [key for key in self._seen if key not in keys]:
            del self._seen[key]

    def forget(self, key: K) -> None:
        """Forget one key."""
        self._seen.pop(key, None)

    def forget_all(self) -> None:
        """Forget all keys: the table is gone, or another worker watched it meanwhile."""
        self._seen.clear()
