"""When micro-batches start, against tables and in virtual time."""

from __future__ import annotations

import pytest

from mld.processors.spark.host.offers import LITTLE_BYTES, TriggerPace

ADAPTIVE = TriggerPace(30.0, 120.0, 64 * LITTLE_BYTES)
LOW = TriggerPace(1.0, 1.0, 64 * LITTLE_BYTES)
LONG_AGO = -1e9


@pytest.mark.parametrize(
    ("pace", "last_start", "first_waiting_at", "waiting", "due_at"),
    [
        (ADAPTIVE, LONG_AGO, 5.0, 1, 5.1),  # the first record of all, or the first after a silence
        (ADAPTIVE, 0.0, 5.0, 1, 120.0),  # little waits
        (ADAPTIVE, 0.0, 5.0, LITTLE_BYTES - 1, 120.0),
        (ADAPTIVE, 0.0, 5.0, LITTLE_BYTES, 30.0),  # enough for a file
        (ADAPTIVE, 0.0, 119.95, 1, pytest.approx(120.05)),  # shards of one beat come together
        (ADAPTIVE, 0.0, 500.0, 1, 500.1),
        (LOW, 0.0, 0.2, 1, 1.0),
        (LOW, 0.0, 0.2, LITTLE_BYTES, 1.0),
        (TriggerPace(0.01, 0.01, 1), 0.0, 1.0, 1, 1.001),
    ],
)
def test_when_a_micro_batch_starts(pace, last_start, first_waiting_at, waiting, due_at):
    assert pace.due_at(last_start, first_waiting_at, waiting) == due_at


@pytest.mark.parametrize(
    ("now", "waiting", "asked", "due"),
    [
        (119.9, 1, False, False),
        (120.0, 1, False, True),
        (0.0, ADAPTIVE.bytes_max - 1, False, False),
        (0.0, ADAPTIVE.bytes_max, False, True),  # full
        (0.0, 1, True, True),  # a shard ends or moves, or there is no room for more
    ],
)
def test_by_time_by_size_or_when_asked(now, waiting, asked, due):
    assert ADAPTIVE.is_due(now, 120.0, waiting, asked=asked) is due


def starts(pace: TriggerPace, arrivals: list[tuple[float, int]], until: float) -> list[float]:
    """When micro-batches start, each of which takes all that waits; arrivals are times and bytes."""
    found: list[float] = []
    last, waiting, first, left = LONG_AGO, 0, 0.0, list(arrivals)
    while left or waiting:
        due_at = pace.due_at(last, first, waiting) if waiting else float("inf")
        if left and left[0][0] <= due_at and waiting < pace.bytes_max:
            at, size = left.pop(0)
            first = at if not waiting else first
            waiting += size
            due_at = at if pace.is_due(at, float("inf"), waiting, asked=False) else float("inf")
            if due_at > at:
                continue
        if due_at > until:
            break
        found.append(due_at)
        last, waiting = due_at, 0
    return found


def beat(every_s: float, seconds: float, size: int) -> list[tuple[float, int]]:
    return [(n * every_s, size) for n in range(int(seconds / every_s))]


@pytest.mark.parametrize(
    ("arrivals", "commits"),
    [
        ([], 0),  # no job at all for nothing
        (beat(1.0, 3600, 100), 30),  # a trickle: one in two minutes
        (beat(1.0, 3600, LITTLE_BYTES // 20), 120),  # enough for a file within 30 s
        (beat(1.0, 3600, 8 * LITTLE_BYTES), 450),  # full every 8 s
        (beat(600.0, 3600, 100), 6),  # each at once
    ],
)
def test_commits_of_an_hour(arrivals, commits):
    assert len(starts(ADAPTIVE, arrivals, 3600.0)) == pytest.approx(commits, abs=2)


@pytest.mark.parametrize("every_s", [0.2, 1.0, 7.0, 45.0, 119.0, 121.0, 900.0])
def test_no_record_waits_for_longer_than_the_quiet_interval(every_s):
    arrivals = beat(every_s, 7200, 100)
    found = starts(ADAPTIVE, arrivals, 1e9)
    for at, _ in arrivals:
        assert min(start for start in found if start >= at) - at <= ADAPTIVE.quiet_s + 0.1
