"""Whole daemons that publish their metrics: to a CloudWatch, to a collector; and what their log says."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

import pytest

from mld.metrics.published import JAVA_METRICS
from mld.properties.values import MetricsLevel
from tests.integration import metric_story
from tests.integration.world import ASSIGNED, ENVIRONMENT, SHORT_LEASE, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tests.support.recording_cloudwatch import RecordingCloudWatch
from tests.support.servers import ROOT

QUICKLY = {"metricsBufferTimeMillis": 1000}


def actions(daemon: Daemon, action: str) -> list[dict[str, object]]:
    return [event for event in daemon.events if event.get("action") == action]


def consumed(world: World, records: int, **keys: object) -> Daemon:
    """A daemon that has consumed so many records and has stopped."""
    world.put(records)
    daemon = world.daemon(**keys)
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    return daemon


def test_cloudwatch_has_every_record_when_the_daemon_has_stopped(make_world: MakeWorld) -> None:
    """Nothing was due before the stop: all of it are last words."""
    world = make_world(shards=2)
    consumed(world, 300, cloudWatchEndpoint=world.aws.endpoint, metricsBufferTimeMillis=3_600_000)
    cloudwatch = world.aws.client("cloudwatch")
    metrics = cloudwatch.list_metrics(Namespace=world.table, MetricName="RecordsProcessed")["Metrics"]
    assert {tuple(one["Name"] for one in metric["Dimensions"]) for metric in metrics} == {("Operation", "ShardId")}
    total = 0.0
    for shard in ("shardId-000000000000", "shardId-000000000001"):
        dimensions = [{"Name": "Operation", "Value": "ProcessTask"}, {"Name": "ShardId", "Value": shard}]
        points = cloudwatch.get_metric_statistics(
            Namespace=world.table,
            MetricName="RecordsProcessed",
            Dimensions=dimensions,
            StartTime=0,
            EndTime=4_000_000_000,
            Period=86_400,
            Statistics=["Sum"],
            Unit="Count",
        )["Datapoints"]
        total += sum(point["Sum"] for point in points)
    assert total == 300
    cloudwatch.close()


def test_what_is_sent_is_in_kcl_s_table_packed_and_compressed(make_world: MakeWorld) -> None:
    world = make_world(shards=8)
    with RecordingCloudWatch() as cloudwatch:
        consumed(world, 100, cloudWatchEndpoint=cloudwatch.endpoint, metricsBufferTimeMillis=3_600_000)
    (request,) = cloudwatch.requests
    assert request.namespace == world.table
    assert len(request.datums) > 80
    assert request.encoding == "gzip"
    assert request.size_bytes < 20_000
    of_a_shard = {datum.name for datum in request.datums if datum.dimensions.get("ShardId", "").endswith("0")}
    billed = {name for name in of_a_shard if "getShardIterator" not in name}  # sent at a start only
    table = {(metric.operation, metric.name): metric for metric in JAVA_METRICS}
    at_summary = sum(table["ProcessTask", name].level is MetricsLevel.SUMMARY for name in billed)
    page = (ROOT / "docs" / "use" / "monitoring.md").read_text()
    assert f"A polled shard has {len(billed)} metrics at `DETAILED` and {at_summary} at `SUMMARY`" in page
    for datum in request.datums:
        metric = table[datum.operation, datum.name]
        assert datum.unit == metric.unit
        assert set(datum.dimensions) == {"Operation"} | {one.value for one in metric.dimensions} - {"StreamId"}
        assert datum.stamp_s is not None and abs(datum.stamp_s - time.time()) < 3600
        assert 0 <= datum.values["Minimum"] <= datum.values["Sum"] / datum.values["SampleCount"] + 1e-6


def test_level_and_dimensions_of_the_file_are_kept(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    keys = {"metricsLevel": "SUMMARY", "metricsEnabledDimensions": "Operation,WorkerIdentifier"}
    with RecordingCloudWatch() as cloudwatch:
        consumed(world, 50, cloudWatchEndpoint=cloudwatch.endpoint, **keys)
    datums = cloudwatch.datums
    assert "RecordsProcessed" in {datum.name for datum in datums}
    assert [datum for datum in datums if "ShardId" in datum.dimensions] == []
    assert [datum for datum in datums if datum.name.startswith("KinesisDataFetcher")] == []
    assert {datum.dimensions.get("WorkerIdentifier") for datum in datums} == {None, "w1"}


def test_without_permission_there_is_one_warning_and_everything_else_goes_on(make_world: MakeWorld) -> None:
    world = make_world()
    with RecordingCloudWatch() as cloudwatch:
        cloudwatch.refuse(403, "AccessDenied")
        world.put(20)
        daemon = world.daemon(cloudWatchEndpoint=cloudwatch.endpoint, **QUICKLY)
        world.until_delivered()
        world.until(lambda: len(cloudwatch.refused) >= 2, what="two refusals")
        assert daemon.stop() == 0
    (warning,) = actions(daemon, "metrics_failed")
    assert warning["level"] == "WARNING"
    assert "cloudwatch:PutMetricData" in str(warning["message"])


def test_a_worker_without_a_name_of_its_own_is_no_dimension(make_world: MakeWorld) -> None:
    world = make_world()
    with RecordingCloudWatch() as cloudwatch:
        world.put(20)
        keys = world.keys("", world.recorder(), {"cloudWatchEndpoint": cloudwatch.endpoint, **QUICKLY, **SHORT_LEASE})
        del keys["workerId"]
        nameless = Daemon(world.directory, keys, environment=ENVIRONMENT)
        world.daemons.append(nameless)
        nameless.start()
        world.until(
            lambda: "RenewLease.Success" in {datum.name for datum in cloudwatch.datums}, what="renewals published"
        )
        assert nameless.stop() == 0
    assert {"WorkerIdentifier"} & {name for datum in cloudwatch.datums for name in datum.dimensions} == set()


def test_each_stop_sums_up_what_was_done(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    daemon = consumed(world, 100)
    (summary,) = actions(daemon, "summary")
    assert summary["level"] == "INFO"
    assert summary["records"] == 100
    assert summary["bytes"] == sum(len(put.data) for put in world.puts)
    assert summary["restarts"] == 0


NOT_SENT = {
    "FleetMinSupportCode": "of the move to a single table, which only a Java leader makes",
    "LeaseSpillover": "3.1.3 sends it always, 3.5.1 and mld when leases find no worker with room",
    "StaleWorkerMetricsCleanup.Time": "not in 3.5 any more",
    "TotalStaleWorkerMetricsEntry": "not in 3.5 any more",
}
"""What a Java worker sends in this run and mld does not, and why."""


@pytest.mark.parametrize("level", ["DETAILED", pytest.param("SUMMARY", marks=pytest.mark.full)])
def test_mld_sends_what_java_sends_in_the_same_run(make_world: MakeWorld, level: str) -> None:
    """Names, units and dimensions. The record is made by `tests/interop/test_metrics.py`."""
    world = make_world(shards=metric_story.SHARDS)
    with RecordingCloudWatch() as cloudwatch:
        keys = {"cloudWatchEndpoint": cloudwatch.endpoint, "metricsLevel": level}
        daemon = world.daemon(**keys, **ASSIGNED, **SHORT_LEASE, **QUICKLY)
        ours = metric_story.tell(world, daemon, cloudwatch)
    by_java = {case: lines for case, lines in metric_story.recorded().items() if case.endswith(level)}
    assert len(by_java) == 2
    for case, theirs in by_java.items():
        missing = [line for line in sorted(theirs - ours) if line.name not in NOT_SENT]
        assert missing == [], f"sent by Java {case}"
        of_both = {(line.operation, line.name) for line in theirs}
        assert [line for line in sorted(ours - theirs) if (line.operation, line.name) in of_both] == []
    wanted = {(metric.operation, metric.name) for metric in JAVA_METRICS if level in ("DETAILED", metric.level.value)}
    assert [line for line in sorted(ours) if (line.operation, line.name) not in wanted] == []


def test_metrics_are_scraped_only_if_the_file_says_so(make_world: MakeWorld) -> None:
    world = make_world()
    daemon = world.daemon(mld__http="127.0.0.1:0", mld__metrics="none")
    address = daemon.wait_for_event("http_serving")["address"]
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S)
    refused.value.close()
    with urllib.request.urlopen(f"http://{address}/livez", timeout=PATIENCE_S) as alive:
        assert alive.status == 200
