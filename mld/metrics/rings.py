"""The last hour of each shard of this worker: how far behind it was and its records per second. Bounded.

A young daemon has much to show as well: values are taken every few seconds at first, and each time the rings are full,
two values become one and the step doubles, until the rings hold an hour. From then on the oldest values go.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from mld.core.steps import SLICE, Steps
from mld.metrics.shard import ShardMetrics

VALUES_MAX = 60
STEP_FIRST_S = 4.0
STEP_LAST_S = 64.0
SHARDS_MAX = 2_000
"""More than a worker holds; of more, the histories are not kept."""
SLICE_HALVED = 20  # shards between two turns of the loop: 40 µs for each

Values = list[float | None]


class History:
    """`note` is called every `step_s` seconds. All shards have the same steps, the newest value last."""

    def __init__(self) -> None:
        self.step_s = STEP_FIRST_S
        self._behind: dict[str, Values] = {}
        self._rates: dict[str, Values] = {}
        self._records: dict[str, tuple[float, float]] = {}

    def note(self, parts: Mapping[str, ShardMetrics], now: float, wall_s: float) -> Steps[None]:
        """Add one more value for each shard (`now` monotonic, `wall_s` epoch seconds); shards that are gone go
        here too.
        """
        kept = list(parts.items())[:SHARDS_MAX]
        self._forget_all_but({key for key, _ in kept})
        for number, (key, part) in enumerate(kept):
            if number % SLICE == 0:
                yield
            lag_ms = part.lag_ms(wall_s)
            self._behind.setdefault(key, []).append(None if lag_ms is None else lag_ms / 1000)
            self._rates.setdefault(key, []).append(self._rate(key, part.batches.total, now))
            self._records[key] = (part.batches.total, now)
        if max(map(len, self._behind.values()), default=0) > VALUES_MAX:
            yield from self._make_room()

    def _forget_all_but(self, kept: Set[str]) -> None:
        for key in self._records.keys() - kept:
            del self._behind[key], self._rates[key], self._records[key]

    def _rate(self, key: str, records: float, now: float) -> float | None:
        before = self._records.get(key)
        if before is None or records < before[0] or now <= before[1]:
            return None  # the first value, or another holding
        return (records - before[0]) / (now - before[1])

    def _make_room(self) -> Steps[None]:
        is_an_hour = self.step_s >= STEP_LAST_S
        for number, key in enumerate(list(self._records)):
            if number % SLICE_HALVED == 0:
                yield
            if is_an_hour:
                del self._behind[key][:-VALUES_MAX], self._rates[key][:-VALUES_MAX]
            else:
                self._behind[key] = _halved(self._behind[key], most=True)
                self._rates[key] = _halved(self._rates[key], most=False)
        if not is_an_hour:
            self.step_s *= 2

    def behind(self, key: str) -> Values:
        """Return seconds behind, oldest first; None where it was not known."""
        return list(self._behind.get(key, ()))

    def rate(self, key: str) -> Values:
        """Return records per second, oldest first."""
        return list(self._rates.get(key, ()))


def _halved(values: Values, *, most: bool) -> Values:
    """Return one value for two, counted from the newest: the greater one, or their mean. A peak of lag must stay
    visible.
    """
    halved: Values = []
    for end in range(len(values), 0, -2):
        known = [value for value in values[max(0, end - 2) : end] if value is not None]
        both = None if not known else max(known) if most else sum(known) / len(known)
        halved.append(both)
    return halved[::-1]
