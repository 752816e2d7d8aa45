"""One line for people who look at the service."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mld.metrics.activity import ShardActivity
from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.serving.summary import status_line

PROCESSING = ShardActivity.PROCESSING


def line(*shards: tuple[ShardActivity, int | None], faults: Mapping[str, int] | None = None) -> str:
    metrics = Metrics()
    for number, (activity, behind_ms) in enumerate(shards):
        part = metrics.begin(f"shardId-{number:012}", 0.0)
        part.forced_activity, part.behind_ms, part.behind_wall_s = activity, behind_ms, 1.0
    metrics.worker.fault_counts = faults or {}
    return status_line(metrics, Instant(0.0, 1.0))


def test_the_line_says_how_many_shards_what_is_wrong_and_how_far_behind() -> None:
    assert line() == "no shards"
    assert line((PROCESSING, None)) == "1 shard, lag unknown"
    assert line(*[(PROCESSING, 0)] * 11, (PROCESSING, 340)) == "12 shards, 340 ms behind"
    three = line(*[(PROCESSING, 0)] * 3, faults={"corrupt": 0, "parked": 1, "failing": 1})
    assert three == "3 shards, 1 parked, 1 failing, 0 ms behind"


@pytest.mark.parametrize(
    ("millis", "expected"),
    [
        (0, "0 ms"),
        (7, "10 ms"),
        (346, "350 ms"),
        (999, "1 s"),
        (1_000, "1 s"),
        (1_260, "1 s"),
        (59_400, "59 s"),
        (150_000, "2 min"),
        (5_400_000, "90 min"),
        (86_400_000 * 12, "12.0 d"),
    ],
)
def test_two_digits_are_enough(millis: int, expected: str) -> None:
    assert line((PROCESSING, millis)) == f"1 shard, {expected} behind"
