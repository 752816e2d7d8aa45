"""`Stillness`: since when each value has been unchanged, by the watcher's own clock. Pure.

No two machines agree on the time, so a worker is known to live by what it writes: the counter of a lease, the version
of a lock, the time in a report. A watcher reads such values again and again, and whoever lets one stand still for
longer than a promised time is dead. Times are monotonic seconds, passed in.

    what a look shows             `since` is                          `has_moved`
    a key that is not known       the time of the look, `first_at`    no
                                  if the caller gives one
    the value that was seen last  as before                           as before
    any other value               the time of the look                yes

Any other value counts, also a smaller one: a row may be restored, or made again in a new table. Whoever learns that a
table is gone forgets what was seen of it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

NEVER = -math.inf
"""Since when a value is unchanged that nobody is expected to change: the first look counts for nothing."""


class _Seen(NamedTuple, Generic[V]):
    value: V
    since: float
    has_moved: bool


class Stillness(Generic[K, V]):
    """What was seen of each key."""

    def __init__(self) -> None:
        self._seen: dict[K, _Seen[V]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._seen

    def __iter__(self) -> Iterator[K]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def saw(self, key: K, value: V, now: float, first_at: float | None = None) -> bool:
        """Take note of one value, read at `now`; return whether it is news. `first_at` is for a key not known yet."""
        before = self._seen.get(key)
        if before is not None and before.value == value:
            return False
        since = now if before is not None or first_at is None else first_at
        self._seen[key] = _Seen(value, since, before is not None)
        return True

    def saw_all(self, values: Mapping[K, V], now: float) -> None:
        """Take note of all values there are, read at `now`, and forget the keys that are gone."""
        for key, value in values.items():
            self.saw(key, value, now)
        self.keep(values)

    def begin(self, key: K, value: V, since: float) -> None:
        """Count this value from `since`, whatever was seen before, and as one that has not moved yet."""
        self._seen[key] = _Seen(value, since, False)

    def since(self, key: K) -> float:
        """Return since when a known key has its value."""
        return self._seen[key].since

    def value(self, key: K) -> V | None:
        """Return the value that was seen last; None if the key is not known."""
        seen = self._seen.get(key)
        return None if seen is None else seen.value

    def has_moved(self, key: K) -> bool:
        """Return whether the key was seen with another value before."""
        return key in self._seen and self._seen[key].has_moved

    def is_still(self, key: K, now: float, for_s: float) -> bool:
        """Return whether the value has been unchanged for longer than `for_s`; False if the key is not known."""
        return key in self._seen and now - self._seen[key].since > for_s

    def keep(self, keys: Container[K]) -> None:
        """Forget all other keys."""
        for key in [key for key in self._seen if key not in keys]:
            del self._seen[key]

    def forget(self, key: K) -> None:
        """Forget one key."""
        self._seen.pop(key, None)

    def forget_all(self) -> None:
        """Forget everything, because the table is gone or somebody else watched it meanwhile."""
        self._seen.clear()
