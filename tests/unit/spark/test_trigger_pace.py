"""When micro-batches start, against tables and in virtual time."""

from __future__ import annotations

import pytest

from mld.processors.spark.host.trigger import LITTLE_BYTES, due_at
from mld.processors.spark.settings import GATHER_QUIET_S, SparkSettings
from tests.unit.spark.twins import settings_of

FULL = 64 * LITTLE_BYTES
ADAPTIVE = settings_of(f"mld.spark.maxBatchBytes = {FULL}")
LOW = settings_of(f"mld.spark.maxBatchBytes = {FULL}", "mld.spark.triggerIntervalMillis = 1000")
LOWEST = settings_of("mld.spark.triggerIntervalMillis = 10")
LONG_AGO = -1e9


@pytest.mark.parametrize(
    ("pace", "last_start", "first_waiting_at", "waiting", "due"),
    [
        (ADAPTIVE, LONG_AGO, 5.0, 1, 5.1),  # the first record of all, or the first after a silence
        (ADAPTIVE, 0.0, 5.0, 1, 120.0),  # little waits
        (ADAPTIVE, 0.0, 5.0, LITTLE_BYTES - 1, 120.0),
        (ADAPTIVE, 0.0, 5.0, LITTLE_BYTES, 30.0),  # enough for a file
        (ADAPTIVE, 0.0, 119.95, 1, pytest.approx(120.05)),  # shards of one beat come together
        (ADAPTIVE, 0.0, 500.0, 1, 500.1),
        (LOW, 0.0, 0.2, 1, 1.0),
        (LOW, 0.0, 0.2, LITTLE_BYTES, 1.0),
        (LOWEST, 0.0, 1.0, 1, 1.001),
    ],
)
def test_when_a_micro_batch_starts(pace, last_start, first_waiting_at, waiting, due):
    assert due_at(pace, last_start, first_waiting_at, waiting, asked=False) == due


@pytest.mark.parametrize(
    ("waiting", "asked", "due"),
    [
        (1, False, 120.0),
        (FULL - 1, False, 30.0),
        (FULL, False, 5.0),
        (1, True, 5.0),  # a shard ends or moves, or there is no room for more
    ],
)
def test_by_time_by_size_or_when_asked(waiting, asked, due):
    assert due_at(ADAPTIVE, 0.0, 5.0, waiting, asked=asked) == due


def starts(pace: SparkSettings, arrivals: list[tuple[float, int]], until: float) -> list[float]:
    """When micro-batches start, each of which takes all that waits; arrivals are times and bytes."""
    found: list[float] = []
    now = last = LONG_AGO
    waiting, first, left = 0, 0.0, list(arrivals)
    while left or waiting:
        due = max(now, due_at(pace, last, first, waiting, asked=False)) if waiting else float("inf")
        if left and left[0][0] <= due and waiting < FULL:
            now, size = left.pop(0)
            first = first if waiting else now
            waiting += size
            continue
        if due > until:
            break
        found.append(due)
        now, last, waiting = due, due, 0
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
        assert min(start for start in found if start >= at) - at <= GATHER_QUIET_S + 0.1
