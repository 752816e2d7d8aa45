"""What should wake somebody: one list of alerts, as rules of Prometheus and as alarms of CloudWatch. Pure.

Each names metrics of the catalogue only, and says in its text what to do first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mld.aws.table_calls import THROTTLING_CODES
from mld.metrics.catalogue import JAVA_BY_NAME
from mld.metrics.declaring import Dimension
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel, MetricsOutput
from mld.views.datums import Wanted, dimensions_of

OPERATIONS_PAGE = "docs/use/operations.md"
RETENTION_DEFAULT_S = 86_400
MINUTE_S = 60
PAUSED_FOR_S = 4 * 60 * MINUTE_S
_MATCHERS = {
    "app": "",
    "app_and_range": ',why="range"',
    "app_and_stalled": ',state="stalled"',
    "app_and_throttled": f',service="dynamodb",result=~"{"|".join(sorted(THROTTLING_CODES))}"',
}
"""What stands for which labels in an expression; that of the application is added."""


@dataclass(frozen=True, slots=True)
class Alert:
    """`expression` is PromQL; `_MATCHERS` has what stands in it for labels."""

    name: str
    expression: str
    for_s: int
    severity: str
    summary: str
    remedy: str


def alerts_of(settings: Settings, retention_s: int = RETENTION_DEFAULT_S) -> tuple[Alert, ...]:
    """The alerts of an application whose stream keeps records for `retention_s`."""
    return (
        Alert(
            "MldFarBehind",
            f"max by (stream, shard) (mld_shard_behind_seconds{{app}}) > {retention_s // 4}",
            5 * MINUTE_S,
            "page",
            "A shard is behind by a quarter of the retention: records will be lost if nothing changes.",
            "mld lag says which and why; give its processor more room or a longer retention.",
        ),
        Alert(
            "MldBehind",
            "max by (stream, shard) (mld_shard_behind_seconds{app}) > 300",
            5 * MINUTE_S,
            "ticket",
            "A shard has been more than 5 minutes behind for 5 minutes.",
            "mld lag --watch shows whether it catches up.",
        ),
        Alert(
            "MldUnreadable",
            "max by (stream, shard) (mld_shard_unread_seconds{app}) > 120",
            0,
            "page",
            "All reads of a shard have failed for 2 minutes.",
            "mld lag has the error; mld doctor tries the same calls with the same credentials.",
        ),
        Alert(
            "MldLagUnknown",
            "max by (stream, shard) (mld_lease_renewal_age_seconds{app}) "
            "unless max by (stream, shard) (mld_shard_behind_seconds{app})",
            5 * MINUTE_S,
            "page",
            "Nobody has known for 5 minutes how far behind a shard is.",
            "mld lag says why: it is not read yet, it waits for its parent, or its reads fail.",
        ),
        Alert(
            "MldAbsent",
            "absent(mld_leases{app})",
            5 * MINUTE_S,
            "page",
            "No daemon of the application is seen, so that no other alert can fire.",
            "Look whether the daemons run, whether mld.http is set, and what the scraper says.",
        ),
        Alert(
            "MldTableThrottled",
            "sum(increase(mld_aws_requests_total{app_and_throttled}[5m])) > 0",
            10 * MINUTE_S,
            "ticket",
            "DynamoDB has refused requests of the daemons for want of capacity for 10 minutes.",
            "Set billing to PAY_PER_REQUEST, add capacity, or set mld.heartbeat=worker.",
        ),
        Alert(
            "MldStalled",
            "max by (stream, shard) (mld_shard_state{app_and_stalled}) > 0",
            5 * MINUTE_S,
            "page",
            "A record processor has neither answered nor checkpointed for 6 minutes, with records in its hands.",
            "mld tap shows what its child says; set timeoutInSeconds if it should be ended.",
        ),
        Alert(
            "MldShardParked",
            "sum(mld_shards_parked{app}) > 0",
            0,
            "page",
            "A shard waits for an operator.",
            "mld leases names it; repair the processor, or mld skip past the record.",
        ),
        Alert(
            "MldShardPaused",
            "sum(mld_shards_paused{app}) > 0",
            PAUSED_FOR_S,
            "ticket",
            "A shard has been paused for 4 hours: perhaps somebody forgot it.",
            "mld leases says who paused it, when and why; mld resume lets it go on.",
        ),
        Alert(
            "MldLeasesWithoutOwner",
            "max(mld_unassigned_leases{app}) > 0",
            2 * MINUTE_S,
            "page",
            "Leases have had no live owner for 2 minutes.",
            "mld workers: is there a leader, and are there enough workers (maxLeasesForWorker)?",
        ),
        Alert(
            "MldNoRoom",
            "max(mld_leases_without_room{app}) > 0",
            0,
            "page",
            "No worker has had room for a shard for a minute: nobody reads it.",
            "Start another worker, or raise maxLeasesForWorker; mld leases names the shards.",
        ),
        Alert(
            "MldChildRestarts",
            "sum by (stream, shard) (increase(mld_child_restarts_total{app}[10m])) > 3",
            0,
            "ticket",
            "A child was restarted more than three times in 10 minutes.",
            "The daemon's log has its last words.",
        ),
        Alert(
            "MldLeasesLost",
            "sum(increase(mld_leases_lost_total{app}[10m])) > 3",
            0,
            "ticket",
            "Workers lose leases that they still want.",
            "Look for stalls of the host and slow answers of DynamoDB; raise failoverTimeMillis.",
        ),
        Alert(
            "MldHoles",
            "max(mld_lease_table_holes{app}) > 0",
            10 * MINUTE_S,
            "page",
            "A part of the hash range has no lease: its records are read by nobody.",
            "mld leases shows the hole; the leader fills it unless rows were deleted by hand.",
        ),
        Alert(
            "MldNoLeader",
            "max(mld_leader{app}) < 1",
            3 * MINUTE_S,
            "page",
            "Nobody leads: leases of dead workers go to nobody.",
            "mld workers; mld doctor on one of them.",
        ),
        Alert(
            "MldAggregatesDropped",
            "sum by (stream, shard) (increase(mld_aggregates_dropped_total{app_and_range}[10m])) > 0",
            0,
            "page",
            "Aggregated records were put to another shard than the one they were made for, and are not delivered.",
            "Repair the producer (explicit hash keys, records copied between shards).",
        ),
        Alert(
            "MldSparkStalled",
            "max(mld_spark_trigger_age_seconds{app}) > 300 or max(mld_spark_silence_seconds{app}) > 60 "
            "or max(mld_spark_uncommitted_age_seconds{app} - 3 * mld_spark_trigger_interval_seconds{app}) > 300",
            0,
            "page",
            "mld-spark accepts records and commits none of them: a job hangs, waits for a sink, or is very slow.",
            "The log has lines of the session host that say why; docs/use/spark-operating.md, Alerts.",
        ),
        Alert(
            "MldSparkSinkAside",
            "max(mld_spark_sinks_aside{app}) > 0",
            10 * MINUTE_S,
            "ticket",
            "A sink of mld-spark has been left out for 10 minutes, while the others go on.",
            "mld check names it; its records are kept, and no checkpoint passes them.",
        ),
        Alert(
            "MldSparkDeadLetters",
            "sum(increase(mld_spark_records_malformed_total{app}[10m])) "
            "+ sum(increase(mld_spark_records_poisoned_total{app}[10m])) > 0",
            0,
            "ticket",
            "Records could not be decoded, or a pipeline or sink failed with them.",
            "Look at the dead letter; mld-spark --replay-dead-letter puts back what a correction makes good.",
        ),
        Alert(
            "MldSparkDropped",
            "sum(increase(mld_spark_records_dropped_total{app}[5m])) > 0",
            15 * MINUTE_S,
            "ticket",
            "Records have been delivered again for 15 minutes, and the sinks of mld-spark have them already.",
            "Right after a crash; for a replay set mld.spark.pipelineId to another name.",
        ),
        Alert(
            "MldUnexpected",
            "sum(increase(mld_unexpected_errors_total{app}[1h])) > 0",
            0,
            "ticket",
            "The daemon survived an exception that nobody expected.",
            "Report it, with the trace in the log.",
        ),
    )


def prometheus_rules(settings: Settings, retention_s: int = RETENTION_DEFAULT_S) -> str:
    """A file of alerting rules, in YAML; JSON strings are YAML strings."""
    lines = ["groups:", f"  - name: {json.dumps(f'mld {settings.application_name}')}", "    rules:"]
    for alert in alerts_of(settings, retention_s):
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(_filled(alert.expression, settings))}",
            f"        for: {alert.for_s}s",
            "        labels:",
            f"          severity: {alert.severity}",
            f"          application: {json.dumps(settings.application_name)}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          description: {json.dumps(f'{alert.remedy} See {OPERATIONS_PAGE}.')}",
        ]
    return "\n".join(lines)


def _filled(expression: str, settings: Settings) -> str:
    matcher = f"application={json.dumps(settings.application_name)}"
    for name, more in _MATCHERS.items():
        expression = expression.replace(f"{{{name}}}", f"{{{matcher}{more}}}")
    return expression


def unseen(settings: Settings, *, by_cloudwatch: bool) -> str:
    """Why these alerts would see nothing of a daemon with this file; empty if they would."""
    if not by_cloudwatch:
        if settings.http is None or MetricsOutput.PROMETHEUS not in settings.metrics.outputs:
            return "nothing can be scraped yet: set mld.http, and prometheus in mld.metrics"
        return ""
    if MetricsOutput.CLOUDWATCH not in settings.metrics.outputs or settings.metrics_level is MetricsLevel.NONE:
        return "nothing is sent to CloudWatch yet: set mld.metrics=cloudwatch, and metricsLevel to SUMMARY or DETAILED"
    return ""


# --- CloudWatch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alarm:
    """One of KCL's metrics and its bound; `periods` of a minute."""

    name: str
    operation: str
    metric: str
    statistic: str
    threshold: float
    periods: int
    summary: str
    missing: str = "notBreaching"


def alarms_of(retention_s: int = RETENTION_DEFAULT_S) -> tuple[Alarm, ...]:
    quarter_ms = retention_s * 1000 // 4
    return (
        Alarm(
            "far-behind",
            "ApplicationTracker",
            "MillisBehindLatest",
            "Maximum",
            quarter_ms,
            5,
            "A shard is behind by a quarter of the retention.",
            missing="breaching",
        ),
        Alarm(
            "behind",
            "ApplicationTracker",
            "MillisBehindLatest",
            "Maximum",
            300_000,
            5,
            "A shard is more than 5 minutes behind.",
        ),
        Alarm(
            "holes",
            "PeriodicShardSyncManager",
            "NumStreamsWithPartialLeases",
            "Maximum",
            0,
            10,
            "A part of the hash range has no lease.",
        ),
        Alarm("leases-lost", "RenewAllLeases", "LostLeases", "Sum", 3, 10, "Workers lose leases that they still want."),
        Alarm(
            "iterators-expired",
            "ProcessTask",
            "ExpiredIterator",
            "Sum",
            10,
            10,
            "Iterators expire: processors take longer than 5 minutes a batch.",
        ),
    )


def cloudformation_alarms(settings: Settings, retention_s: int = RETENTION_DEFAULT_S) -> str:
    """A template with the alarms, in JSON. Its parameter names the topic that is told.

    A metric of one worker has the worker's id as a dimension if `workerId` is set, and so has its alarm: each worker's
    file makes one of its own.
    """
    wanted = Wanted.of(settings)
    resources: dict[str, Any] = {}
    for alarm in alarms_of(retention_s):
        metric = JAVA_BY_NAME[alarm.operation, alarm.metric]
        if settings.is_multi_stream and Dimension.STREAM in metric.dimensions and wanted.has(Dimension.STREAM):
            continue  # a series for each stream, under an identifier that only the table tells
        dimensions = dimensions_of(metric, wanted)
        worker = dict(dimensions).get(Dimension.WORKER.value)
        logical = "".join(part.capitalize() for part in alarm.name.split("-"))
        resources[logical] = {
            "Type": "AWS::CloudWatch::Alarm",
            "Properties": {
                "AlarmName": "-".join(filter(None, (settings.application_name, alarm.name, worker))),
                "AlarmDescription": alarm.summary,
                "Namespace": settings.application_name,
                "MetricName": alarm.metric,
                "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions],
                "Statistic": alarm.statistic,
                "ComparisonOperator": "GreaterThanThreshold",
                "Threshold": alarm.threshold,
                "Period": MINUTE_S,
                "EvaluationPeriods": alarm.periods,
                "TreatMissingData": alarm.missing,
                "AlarmActions": [{"Ref": "Topic"}],
            },
        }
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of {settings.application_name}",
        "Parameters": {"Topic": {"Type": "String", "Description": "ARN of the SNS topic that is told"}},
        "Resources": resources,
    }
    return json.dumps(template, indent=2)
