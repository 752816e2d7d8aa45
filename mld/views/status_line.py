"""What a worker does, in one short line, for `systemctl status`: ``12 shards, 340 ms behind``. Pure.

Figures are rounded, so that the line changes only when something has.
"""

from __future__ import annotations

from mld.metrics.registry import ShardActivity
from mld.metrics.snapshot import Snapshot

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def status_line(snapshot: Snapshot) -> str:
    """How many shards the worker has, how far behind it is, and what is wrong."""
    count = len(snapshot.shards)
    if count == 0:
        return "no shards"
    parts = [f"{count} shard{'s' * (count != 1)}"]
    parts += [
        f"{number} {activity.value}"
        for activity in (ShardActivity.FAILING, ShardActivity.PARKED)
        if (number := snapshot.count(activity))
    ]
    behind_s = snapshot.behind_s
    parts.append("lag unknown" if behind_s is None else f"{_duration(behind_s)} behind")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Two digits of the largest unit that fits."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds * 1000)} ms"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 10 and round(number, 1) % 1 else f"{float(f'{number:.2g}'):.0f}"
