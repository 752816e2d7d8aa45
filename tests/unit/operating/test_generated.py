"""What is generated names only what exists, for any application, and says why each thing is there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from mld.metrics.declaring import MetricKind
from mld.metrics.published import JAVA_METRICS
from mld.operating.alert_rules import cloudformation_alarms, grafana_dashboard, prometheus_rules, unseen
from mld.operating.iam_policy import policy
from mld.operating.table_template import lease_table, resource_name
from tests.support.fleet import settings_of
from tests.support.metrics_page import CATALOGUE
from tests.unit.test_citations import ROOT, anchors

DAY_S = 86_400
METRIC = re.compile(r"\bmld_[a-z_]+")
STREAM = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"


def published() -> set[str]:
    """Names of series as a scraper stores them."""
    names = {"mld_build_info"}
    for metric in CATALOGUE:
        if metric.kind is MetricKind.HISTOGRAM:
            names |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(metric.name)
    return names


def labels_of(name: str) -> set[str]:
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    (metric,) = (metric for metric in CATALOGUE if metric.name in {name, plain})
    return {*metric.labels, "le", "stream"}


def expressions() -> list[str]:
    settings = settings_of()
    rules = re.findall(r"^        expr: (.*)$", prometheus_rules(settings, DAY_S), re.MULTILINE)
    panels = json.loads(grafana_dashboard(settings))["panels"]
    return [json.loads(rule) for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_names_published_metrics_of_this_application(expression: str) -> None:
    names = set(METRIC.findall(expression))
    assert names
    assert names <= published()
    for name in names:
        assert f'{name}{{application="app"' in expression
    for by in re.findall(r"by \(([a-z, ]+)\)", expression):
        measured = [name for name in names if name != "mld_build_info"]
        assert all(set(by.split(", ")) <= labels_of(name) for name in measured)


def test_panels_of_the_dashboard_lie_side_by_side_and_each_has_a_number_of_its_own() -> None:
    panels = json.loads(grafana_dashboard(settings_of()))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert places == [(12 * (number % 2), 8 * (number // 2)) for number in range(len(panels))]


@pytest.mark.parametrize(
    "metric",
    [
        "mld_shard_behind_seconds",
        "mld_child_busy_seconds",
        "mld_shard_checkpoint_age_seconds",
        "mld_shard_busiest_child_share",
    ],
)
def test_what_a_shard_is_behind_for_is_on_the_dashboard_by_shard(metric: str) -> None:
    panels = json.loads(grafana_dashboard(settings_of()))["panels"]
    shown = [target["expr"] for panel in panels for target in panel["targets"]]
    assert any(re.fullmatch(rf"max by \(stream, shard\) \({metric}\{{.*\}}\)", one) for one in shown)


def test_alarms_name_metrics_of_kcl_that_are_sent() -> None:
    sent = {(metric.operation, metric.name) for metric in JAVA_METRICS}
    template = json.loads(cloudformation_alarms(settings_of(), DAY_S))
    named = {
        (dimension["Value"], one["Properties"]["MetricName"])
        for one in template["Resources"].values()
        for dimension in one["Properties"]["Dimensions"]
        if dimension["Name"] == "Operation"
    }
    assert len(named) == 4
    assert named <= sent
    assert {one["Properties"]["Namespace"] for one in template["Resources"].values()} == {"app"}


def test_alarms_of_several_streams_leave_out_what_bears_the_identifier_of_each() -> None:
    def metrics(**keys: str) -> set[str]:
        template = json.loads(cloudformation_alarms(settings_of(**keys), DAY_S))
        return {one["Properties"]["MetricName"] for one in template["Resources"].values()}

    several = {"streamName": "", "mld__streams": "orders,clicks"}
    assert metrics() - metrics(**several) == {"ExpiredIterator"}
    assert metrics(**several, metricsEnabledDimensions="ShardId") == metrics()


RUNBOOK = re.compile(r"(docs/use/[a-z-]+\.md)#([a-z-]+)")


def test_every_alert_and_alarm_leads_to_a_heading_that_is_there() -> None:
    rules, alarms = prometheus_rules(settings_of(), 86_400), cloudformation_alarms(settings_of(), 86_400)
    led = RUNBOOK.findall(rules)
    assert len(led) == rules.count("- alert: ") == rules.count("runbook_url: ")
    assert len(RUNBOOK.findall(alarms)) == alarms.count('"AlarmDescription": ')
    assert [f"{page}#{anchor}" for page, anchor in led if anchor not in anchors(ROOT / page)] == []
    assert [f"{page}#{anchor}" for page, anchor in RUNBOOK.findall(alarms) if anchor not in anchors(ROOT / page)] == []


def alarm_of(metric: str, **keys: str) -> dict[str, Any]:
    resources = json.loads(cloudformation_alarms(settings_of(**keys), DAY_S))["Resources"]
    found: dict[str, Any] = next(
        one["Properties"] for one in resources.values() if one["Properties"]["MetricName"] == metric
    )
    return found | {"Dimensions": {one["Name"]: one["Value"] for one in found["Dimensions"]}}


def test_an_alarm_has_the_dimensions_with_which_its_metric_is_sent() -> None:
    """CloudWatch finds nothing under fewer or more of them."""
    assert alarm_of("LostLeases")["Dimensions"] == {"Operation": "RenewAllLeases"}
    named = alarm_of("LostLeases", workerId="w1")
    assert named["Dimensions"] == {"Operation": "RenewAllLeases", "WorkerIdentifier": "w1"}
    assert named["AlarmName"] == "app-leases-lost-w1"  # one for each worker
    few = alarm_of("LostLeases", workerId="w1", metricsEnabledDimensions="ShardId")
    assert few["Dimensions"] == {"Operation": "RenewAllLeases"}
    by_arn = alarm_of("ExpiredIterator", streamArn=STREAM)
    assert by_arn["Dimensions"] == {"Operation": "ProcessTask", "StreamId": "clicks"}


@pytest.mark.parametrize(
    ("keys", "by_cloudwatch", "seen"),
    [
        pytest.param({}, True, True, id="as Java"),
        pytest.param({"mld__metrics": "prometheus"}, True, False, id="only scraped"),
        pytest.param({"metricsLevel": "NONE"}, True, False, id="level NONE"),
        pytest.param({}, False, False, id="no address"),
        pytest.param({"mld__http": "127.0.0.1:9404"}, False, True, id="scraped"),
    ],
)
def test_who_generates_alerts_is_told_if_they_would_see_nothing(
    keys: dict[str, str], by_cloudwatch: bool, seen: bool
) -> None:
    assert (unseen(settings_of(**keys), by_cloudwatch=by_cloudwatch) == "") is seen


@pytest.mark.parametrize(("children", "share"), [("2", "0.9"), ("3", "0.67"), ("8", "0.5")])
def test_a_hot_child_is_one_with_most_of_the_records_of_a_shard_that_is_behind(children: str, share: str) -> None:
    rules = prometheus_rules(settings_of(mld__childrenPerShard=children), DAY_S)
    (rule,) = (one for one in rules.split("- alert: ") if one.startswith("MldHotChild\n"))
    assert f"}}) > {share} and " in rule
    assert "mld_shard_behind_seconds" in rule
    assert "operations.md#why-is-it-behind" in rule


def test_bounds_follow_the_retention() -> None:
    assert "> 151200" in prometheus_rules(settings_of(), 7 * DAY_S)


def actions(**keys: str) -> dict[str, list[str]]:
    document = policy(settings_of(**keys))
    return {statement["Sid"]: statement["Action"] for statement in document["Statement"]}


def test_polling_and_fan_out_ask_for_what_they_call_only() -> None:
    assert "kinesis:GetRecords" in actions()["ReadStream"]
    fan_out = actions(retrievalMode="FANOUT")
    assert "kinesis:GetRecords" not in fan_out["ReadStream"]
    assert fan_out["ProveLosses"] == ["kinesis:GetRecords"]
    assert "ProveLosses" not in actions()
    assert fan_out["Subscribe"] == ["kinesis:SubscribeToShard"]
    assert "DeregisterConsumer" not in fan_out


def test_an_arn_tells_account_and_partition_and_the_tables_stay_the_caller_s() -> None:
    document = policy(settings_of(streamArn=STREAM.replace("aws:", "aws-cn:").replace("eu-west", "cn-north")))
    resources = {s["Sid"]: s["Resource"] for s in document["Statement"]}
    assert resources["ReadStream"] == ["arn:aws-cn:kinesis:cn-north-1:123456789012:stream/clicks"]
    assert resources["LeaseRows"] == ["arn:aws-cn:dynamodb:us-east-1:*:table/app"]


def test_nothing_may_be_deleted_or_published_that_need_not() -> None:
    plain = actions()
    assert not any("DeleteTable" in action for group in plain.values() for action in group)
    assert "Metrics" not in actions(metricsLevel="NONE")
    assert "Metrics" not in actions(mld__metrics="prometheus")
    fixed = policy(settings_of(), create=False)
    assert not any("dynamodb:CreateTable" in statement["Action"] for statement in fixed["Statement"])


@pytest.mark.parametrize(
    ("place", "action", "resource"),
    [
        ("s3://letters/app", "s3:PutObject", "arn:aws:s3:::letters/app/*"),
        (STREAM, "kinesis:PutRecord", STREAM),
        (
            "https://sqs.eu-west-1.amazonaws.com/123456789012/letters",
            "sqs:SendMessage",
            "arn:aws:sqs:eu-west-1:123456789012:letters",
        ),
    ],
    ids=["bucket", "stream", "queue"],
)
def test_dead_letters_may_be_written_and_nothing_else(place: str, action: str, resource: str) -> None:
    document = policy(settings_of(mld__deadLetter=place, mld__poisonAttempts="3"))
    (letters,) = (statement for statement in document["Statement"] if statement["Sid"] == "DeadLetters")
    assert (letters["Action"], letters["Resource"]) == ([action], [resource])


def test_the_table_has_the_owner_index() -> None:
    text = lease_table(settings_of(), "lease-table.tf")
    template = json.loads(lease_table(settings_of(), "lease-table.json"))["Resources"]["LeaseTable"]["Properties"]
    assert "LeaseOwnerToLeaseKeyIndex" in text
    assert template["BillingMode"] == "PAY_PER_REQUEST"
    assert [index["IndexName"] for index in template["GlobalSecondaryIndexes"]] == ["LeaseOwnerToLeaseKeyIndex"]


@pytest.mark.parametrize("keys", [{}, {"mld__leaseTableTags": "team=a,cost-centre=b", "leaseTablePitrEnabled": "true"}])
def test_neighbouring_values_are_aligned_as_terraform_fmt_does(keys: dict[str, str]) -> None:
    runs: list[set[int]] = [set()]
    for line in lease_table(settings_of(**keys), "lease-table.tf").splitlines():
        if " = " in line and not line.endswith("{"):
            runs[-1].add(line.index(" = "))
        else:
            runs.append(set())
    assert all(len(columns) <= 1 for columns in runs)


@pytest.mark.parametrize(
    ("application", "name"), [("clicks", "clicks"), ("1st.app", "_1st_app"), ("a/b c", "a_b_c")], ids=str
)
def test_resource_names_are_those_terraform_takes(application: str, name: str) -> None:
    assert resource_name(application) == name


HOSTILE = '${file("/etc/passwd")} %{if true} "\n}\n'
NAMES = ("application_name", "lease_table.name", "stream_name", "fanout.consumer_name")


@pytest.mark.parametrize("name", NAMES)
def test_a_value_is_never_more_than_a_value_in_what_is_generated(name: str) -> None:
    """It begins no line, and no template of Terraform's."""

    def made(value: str) -> list[str]:
        settings = settings_of(retrievalMode="FANOUT")
        group, _, field = name.rpartition(".")
        changed = replace(getattr(settings, group), **{field: value}) if group else value
        settings = replace(settings, **{group or field: changed})
        return [
            json.dumps(policy(settings, create=True), indent=2),
            lease_table(settings, "lease-table.tf"),
            lease_table(settings, "lease-table.json"),
            prometheus_rules(settings, DAY_S),
            cloudformation_alarms(settings, DAY_S),
            grafana_dashboard(settings),
        ]

    for plain, hostile in zip(made("plain"), made(HOSTILE), strict=True):
        assert len(hostile.splitlines()) == len(plain.splitlines()), hostile
    assert not re.search(r"(?<!\$)\$\{|(?<!%)%\{", made(HOSTILE)[1])
