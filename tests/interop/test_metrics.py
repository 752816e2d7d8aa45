"""What a Java worker publishes in the run of `metric_story`, recorded for the tests of every day."""

from __future__ import annotations

import pytest

from mld.metrics.published import JAVA_METRICS
from tests.integration import metric_story
from tests.interop.conftest import MakeWorld
from tests.interop.world import JAVA_START_S
from tests.support.metrics_page import ABSENT
from tests.support.recording_cloudwatch import RecordingCloudWatch

REQUESTS_AFTER = 16  # of 20 datums each: some four seconds
REMOVED = {"StaleWorkerMetricsCleanup.Time", "TotalStaleWorkerMetricsEntry"}
"""Names that 3.5.0 does not have any more."""
PERIOD_MILLIS = 1000


@pytest.mark.parametrize("level", ["DETAILED", "SUMMARY"])
def test_java_publishes_what_is_recorded(make_world: MakeWorld, level: str) -> None:
    """The record is written anew; `git diff` shows whether Amazon has changed anything."""
    world = make_world(shards=metric_story.SHARDS)
    with RecordingCloudWatch() as cloudwatch:
        keys = {"metricsLevel": level, "metricsBufferTimeMillis": PERIOD_MILLIS}
        worker = world.java("java-1", cloudwatch=cloudwatch.endpoint, **keys)
        lines = metric_story.tell(world, worker, cloudwatch, requests_after=REQUESTS_AFTER, within_s=JAVA_START_S)
        protocols = {request.protocol for request in cloudwatch.requests}
    world.note(f"{len(lines)} metrics in {len(cloudwatch.requests)} requests ({', '.join(protocols)})")
    metric_story.record(f"{world.release.version} {level}", lines)
    table = {(metric.operation, metric.name): metric for metric in JAVA_METRICS}
    known = [line for line in sorted(lines) if line.name not in REMOVED and (line.operation, line.name) not in ABSENT]
    assert [line for line in known if (line.operation, line.name) not in table] == []
    assert [line for line in known if table[line.operation, line.name].unit != line.unit] == []
    levels = {table[line.operation, line.name].level.value for line in known}
    assert levels == ({"SUMMARY"} if level == "SUMMARY" else {"SUMMARY", "DETAILED"})
    if world.release.is_single_table:
        assert [line for line in lines if line.name in REMOVED] == []
