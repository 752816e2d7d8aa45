"""Files for monitoring a fleet: alerting rules of Prometheus, alarms of CloudWatch, a dashboard of Grafana.

Each alert names the first thing to do, and links to its page (`runbook_url`). Rules with an expression of their own are
in `templates/alerts.yaml`. Each other kind of fault (`mld.operating.verdicts`) gets a rule over the metric
`mld_faults`.
"""

from __future__ import annotations

import json
from typing import Any

from mld import page_address
from mld.metrics.children import hot_share
from mld.operating.faults import FaultKind
from mld.operating.filling import filled, inner
from mld.operating.verdicts import all_kinds
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel, MetricsOutput

RUNBOOKS = page_address("{page}")
"""Address of the pages that alerts link to, unless the operator gives another one."""


def prometheus_rules(settings: Settings, retention_s: int, runbooks: str = RUNBOOKS) -> str:
    """Return alerting rules of Prometheus, in YAML: those of the template, and a generated one for each alert that has
    no rule there.

    An alert may cover several kinds of faults; its texts and its delay are those of the kind that was declared first.
    Kinds without `hold_s` send no alert. `retention_s` is how long the stream keeps records.
    """
    from mld.aws.table_calls import THROTTLING_CODES

    application = json.dumps(settings.application_name)
    values = {
        "app": inner(f"application={application}"),
        "application": application,
        "group": json.dumps(f"mld {settings.application_name}"),
        "throttling_codes": "|".join(sorted(THROTTLING_CODES)),
        "quarter_s": str(retention_s // 4),
        "hot_share": f"{hot_share(settings.child.children_per_shard):.2g}",
        **_pages(runbooks),
    }
    lines = list(filled("alerts.yaml", values))
    alerts_in_template = {line.partition("alert: ")[2] for line in lines}
    kinds_of_alert: dict[str, list[FaultKind]] = {}
    for kind in all_kinds():
        if kind.alert not in alerts_in_template and kind.hold_s is not None:
            kinds_of_alert.setdefault(kind.alert, []).append(kind)
    for alert, kinds in kinds_of_alert.items():
        main_kind = kinds[0]
        lines += filled(
            "alert.yaml",
            values
            | {
                "alert": alert,
                "kinds": "|".join(kind.name for kind in kinds),
                "hold": f"{main_kind.hold_s:g}",
                "severity": main_kind.severity.value,
                "summary": json.dumps(main_kind.meaning),
                "description": json.dumps(main_kind.first),
                "anchor": main_kind.runbook,
            },
        )
    return "\n".join(lines)


def _pages(runbooks: str) -> dict[str, str]:
    """Return the addresses of the pages that alerts link to, by the names that templates use."""
    pages = {"operations": "operations", "spark": "spark-operating"}
    return {name: inner(runbooks.replace("{page}", page)) for name, page in pages.items()}


def grafana_dashboard(settings: Settings) -> str:
    """Return a dashboard for Grafana over the metrics of Prometheus, in JSON."""
    name = settings.application_name
    values = {
        "app": inner(f"application={json.dumps(name)}"),
        "uid": json.dumps(f"mld-{name}"[:40]),  # Grafana accepts at most 40 characters
        "title": json.dumps(f"mld: {name}"),
    }
    return "\n".join(filled("dashboard.json", values))


def unseen(settings: Settings, *, by_cloudwatch: bool) -> str:
    """Return why a daemon with this file sends no metrics that these alerts could use; empty if it does send them."""
    if not by_cloudwatch:
        if settings.serving.http is None or MetricsOutput.PROMETHEUS not in settings.metrics.outputs:
            return "nothing can be scraped yet: set mld.http, and prometheus in mld.metrics"
        return ""
    if MetricsOutput.CLOUDWATCH not in settings.metrics.outputs or settings.metrics.level is MetricsLevel.NONE:
        return "nothing is sent to CloudWatch yet: set mld.metrics=cloudwatch, and metricsLevel to SUMMARY or DETAILED"
    return ""


def cloudformation_alarms(settings: Settings, retention_s: int, runbooks: str = RUNBOOKS) -> str:
    """Return a CloudFormation template with the alarms. Its parameter names the topic to notify. `retention_s` is how
    long the stream keeps records.

    If `workerId` is set, a metric of one worker has the worker's id as a dimension, and so has the alarm on it. Then
    the template made from each worker's file has alarms of that worker.
    """
    from mld.metrics.datums import Wanted, dimensions_of
    from mld.metrics.declaring import Dimension
    from mld.metrics.published import JAVA_BY_NAME

    wanted = Wanted.of(settings)
    resources: dict[str, Any] = {}
    values = {"quarter_ms": str(retention_s * 1000 // 4), **_pages(runbooks)}
    alarms = json.loads("\n".join(filled("alarms.json", values)))
    for name, alarm in alarms.items():
        metric = JAVA_BY_NAME[alarm.pop("operation"), alarm["MetricName"]]
        if settings.is_multi_stream and Dimension.STREAM in metric.dimensions and wanted.has(Dimension.STREAM):
            continue  # each stream has a series of its own, named by an identifier that is only in the table
        dimensions = dimensions_of(metric, wanted)
        worker = dict(dimensions).get(Dimension.WORKER.value)
        properties = {
            "AlarmName": "-".join(filter(None, (settings.application_name, name, worker))),
            "Namespace": settings.application_name,
            "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions],
            "ComparisonOperator": "GreaterThanThreshold",
            "Period": 60,
            "TreatMissingData": "notBreaching",
            "AlarmActions": [{"Ref": "Topic"}],
        }
        logical_id = "".join(part.capitalize() for part in name.split("-"))
        resources[logical_id] = {"Type": "AWS::CloudWatch::Alarm", "Properties": properties | alarm}
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of {settings.application_name}",
        "Parameters": {"Topic": {"Type": "String", "Description": "ARN of the SNS topic that is told"}},
        "Resources": resources,
    }
    return json.dumps(template, indent=2)
