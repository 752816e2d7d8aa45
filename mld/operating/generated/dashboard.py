"""A dashboard for Grafana over the metrics of the catalogue, filled with the names of one application. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from mld.properties.settings import Settings

SCHEMA_VERSION = 39  # Grafana 11; newer ones migrate it by themselves
WIDTH, HEIGHT = 12, 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One time series panel: PromQL by legend, in a unit of Grafana. `{app}` stands for the label matcher."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


def _one(title: str, unit: str, legend: str, expression: str) -> Panel:
    return Panel(title, unit, ((legend, expression),))


_MEMORY = "process_resident_memory_bytes and on (instance) mld_build_info{app}"

OF_SHARD = "{{stream}} {{shard}}"
PANELS = (
    _one("Behind, by shard", "s", OF_SHARD, "max by (stream, shard) (mld_shard_behind_seconds{app})"),
    _one("Records per second", "ops", OF_SHARD, "sum by (stream, shard) (rate(mld_records_total{app}[2m]))"),
    _one("Bytes per second", "Bps", "all shards", "sum(rate(mld_record_bytes_total{app}[2m]))"),
    Panel(
        "Time of a batch in the child",
        "s",
        (
            ("median", "histogram_quantile(0.5, sum by (le) (rate(mld_process_records_seconds_bucket{app}[5m])))"),
            ("99 %", "histogram_quantile(0.99, sum by (le) (rate(mld_process_records_seconds_bucket{app}[5m])))"),
        ),
    ),
    _one("Batch in hand, by shard", "s", OF_SHARD, "max by (stream, shard) (mld_child_busy_seconds{app})"),
    _one(
        "Age of the last checkpoint",
        "s",
        OF_SHARD,
        "max by (stream, shard) (mld_shard_checkpoint_age_seconds{app})",
    ),
    _one(
        "Restarts of children",
        "short",
        "{{reason}}",
        "sum by (reason) (increase(mld_child_restarts_total{app}[5m]))",
    ),
    _one("Shards by state", "short", "{{state}}", "sum by (state) (mld_shard_state{app})"),
    Panel(
        "Leases",
        "short",
        (
            ("{{instance}}", "mld_leases{app}"),
            ("without owner", "max(mld_unassigned_leases{app})"),
            ("holes", "max(mld_lease_table_holes{app})"),
        ),
    ),
    Panel(
        "Leases that came and went",
        "short",
        (
            ("{{how}}", "sum by (how) (increase(mld_lease_moves_total{app}[5m]))"),
            ("lost", "sum(increase(mld_leases_lost_total{app}[5m]))"),
        ),
    ),
    _one("Reads of Kinesis", "ops", "{{result}}", "sum by (result) (rate(mld_fetches_total{app}[2m]))"),
    _one(
        "Time of a read, 99 %",
        "s",
        "all shards",
        "histogram_quantile(0.99, sum by (le) (rate(mld_fetch_seconds_bucket{app}[5m])))",
    ),
    _one(
        "Units of DynamoDB per second",
        "short",
        "{{kind}}",
        "sum by (kind) (rate(mld_dynamodb_units_total{app}[5m]))",
    ),
    _one(
        "Requests to AWS that failed",
        "ops",
        "{{service}} {{operation}} {{result}}",
        "sum by (service, operation, result) (rate(mld_aws_requests_total{app_failed}[5m]))",
    ),
    _one("Payload that waits for children", "bytes", "{{instance}}", "mld_prefetch_bytes{app}"),
    _one("Memory of the daemon", "bytes", "{{instance}}", _MEMORY),
)


def dashboard(settings: Settings) -> str:
    """The dashboard's JSON, to be imported."""
    application = settings.application_name
    document: dict[str, Any] = {
        "uid": f"mld-{application}"[:40],
        "title": f"mld: {application}",
        "tags": ["mld", "kinesis"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                }
            ]
        },
        "panels": [_panel(number, panel, application) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2)


def _panel(number: int, panel: Panel, application: str) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": {"x": WIDTH * (number % 2), "y": HEIGHT * (number // 2), "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": filled(expression, application),
                "legendFormat": legend,
            }
            for index, (legend, expression) in enumerate(panel.series)
        ],
    }


def filled(expression: str, application: str) -> str:
    """The expression with the application's label matcher."""
    matcher = f"application={json.dumps(application)}"
    return expression.replace("{app_failed}", f'{{{matcher},result!="ok"}}').replace("{app}", f"{{{matcher}}}")
