"""What `mld doctor` makes of what it sees."""

from __future__ import annotations

import pytest

from mld.core.errors import AwsError, AwsUnreachableError
from mld.core.positions import TRIM_HORIZON, Position
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.fleet.report.reports import WorkerReport
from mld.leases.lease import Lease, ShardStatus
from mld.operating import findings
from mld.operating.faults import fault_value
from mld.operating.findings import Diagnosis, Health
from mld.operating.fleet_sight import FleetSight, Listed, Own
from mld.operating.fleet_status import fleet_status
from mld.operating.shard_view import ViewRules
from mld.operating.verdicts import faults_of

ALL = HashRange(0, HASH_KEY_MAX)


def healths(found: list[Diagnosis]) -> dict[str, Health]:
    return {one.about: one.health for one in found}


@pytest.mark.parametrize(
    ("code", "health", "remedy"),
    [
        ("AccessDeniedException", Health.FAIL, "mld iam-policy"),
        ("UnrecognizedClientException", Health.FAIL, "other credentials"),
        ("InvalidSignatureException", Health.FAIL, "other credentials"),
        ("ExpiredTokenException", Health.FAIL, "renew"),
        ("RequestTimeTooSkewed", Health.FAIL, "set the clock"),
        ("KMSDisabledException", Health.FAIL, "kms:Decrypt"),
        ("ThrottlingException", Health.WARN, "which other program"),
        ("ResourceNotFoundException", Health.FAIL, "the name"),
        ("SomethingNew", Health.FAIL, "documentation"),
    ],
)
def test_each_kind_of_refusal_has_its_remedy(code: str, health: Health, remedy: str) -> None:
    finding = findings.refusal("x", "kinesis:GetRecords", AwsError("GetRecords", code, "words"), "check the name")
    assert finding.health is health
    assert remedy in finding.remedy
    assert code in finding.words


def test_no_answer_fails() -> None:
    finding = findings.refusal("x", "kinesis:GetRecords", AwsUnreachableError("GetRecords", "time-out"))
    assert finding.health is Health.FAIL
    assert "network" in finding.remedy


@pytest.mark.parametrize(
    ("offset_s", "health"),
    [(0.4, Health.OK), (29.0, Health.OK), (-45.0, Health.WARN), (600.0, Health.FAIL), (-600.0, Health.FAIL)],
)
def test_the_clock(offset_s: float, health: Health) -> None:
    finding = findings.clock_finding(offset_s)
    assert finding.health is health
    if health is not Health.OK:
        assert ("behind" in finding.words) is (offset_s > 0)


def test_a_clock_that_nobody_could_compare_is_not_called_right() -> None:
    finding = findings.clock_finding(None)
    assert (finding.health, "not checked" in finding.words) == (Health.WARN, True)


def test_a_stream_that_is_not_active_fails_and_a_short_retention_warns() -> None:
    summary = {"StreamName": "s", "StreamStatus": "DELETING", "RetentionPeriodHours": 24, "OpenShardCount": 1}
    assert healths(findings.stream_findings(summary, by_fan_out=False)) == {
        "stream": Health.FAIL,
        "retention": Health.WARN,
    }
    summary |= {"StreamStatus": "UPDATING", "RetentionPeriodHours": 168, "ConsumerCount": 2, "EncryptionType": "KMS"}
    assert set(healths(findings.stream_findings(summary, by_fan_out=True)).values()) == {Health.OK}


def test_the_last_place_for_a_consumer() -> None:
    missing = AwsError("DescribeStreamConsumer", "ResourceNotFoundException")
    assert findings.consumer_finding("c", 20, missing).health is Health.FAIL
    assert findings.consumer_finding("c", 19, missing).health is Health.OK
    assert findings.consumer_finding("c", 20, None).health is Health.OK


def table(**more: object) -> dict[str, object]:
    return {
        "TableName": "t",
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"},
        **more,
    }


def looked_at(described: dict[str, object], open_shards: int | None = 10) -> list[Diagnosis]:
    return findings.table_findings(
        described, key="leaseKey", index="Index", open_shards=open_shards, lease_duration_s=10.0
    )


def test_a_table_of_another_kind_fails_and_nothing_else_is_said() -> None:
    other = table(KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}])
    assert healths(looked_at(other)) == {"lease table": Health.FAIL}
    (numbers,) = looked_at(table(AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "N"}]))
    assert numbers.words == "t is no lease table: its key is leaseKey (HASH, no string)"


@pytest.mark.parametrize(("writes", "health"), [(3, Health.WARN), (4, Health.OK)])
def test_provisioned_capacity_is_compared_with_the_renewals(writes: int, health: Health) -> None:
    units = {"ReadCapacityUnits": 5, "WriteCapacityUnits": writes}
    described = table(BillingModeSummary={}, ProvisionedThroughput=units)
    assert healths(looked_at(described))["billing"] is health


def test_an_index_that_is_missing_is_made_by_the_next_start() -> None:
    (index,) = [one for one in looked_at(table()) if one.about == "owner index"]
    assert index.health is Health.OK and "is missing" in index.words
    indexed = table(GlobalSecondaryIndexes=[{"IndexName": "Index", "IndexStatus": "CREATING"}])
    (index,) = [one for one in looked_at(indexed) if one.about == "owner index"]
    assert "CREATING" in index.words


def rows(leases: list[Lease], shards: list[Shard] | None, corrupt: tuple[tuple[str, str], ...] = ()) -> list[Diagnosis]:
    status = fleet_status(leases, (), None, 0.0, ViewRules(10.0), corrupt=corrupt)
    listed = {} if shards is None else {None: Listed(shards)}
    return [one for one in findings.rows_findings(FleetSight(fleet=status, listed=listed)) if one.about != "workers"]


def test_rows_are_held_against_the_stream() -> None:
    lease = Lease("a", Position("150"), owner=None, hash_range=ALL)
    shard = Shard("a", ALL, "100")
    assert healths(rows([lease], [shard])) == {"lease rows": Health.OK}
    assert healths(rows([lease], [Shard("b", ALL, "100")]))["lease rows"] is Health.FAIL
    assert healths(rows([lease], [Shard("a", HashRange(0, 5), "100")]))["lease rows"] is Health.FAIL
    assert healths(rows([lease], [shard, Shard("b", ALL, "100")]))["lease rows"] is Health.FAIL
    gone = Lease("old", TRIM_HORIZON, owner=None)
    assert healths(rows([lease, gone], [shard]))["lease rows"] is Health.WARN
    assert healths(rows([lease], None)) == {"lease rows": Health.OK}
    assert healths(rows([], [shard])) == {"lease rows": Health.OK}


def test_one_fault_gets_one_advice() -> None:
    """A shard without a row is a hole, too; a row that cannot be read is no missing one."""
    left, right = HashRange(0, 5), HashRange(6, HASH_KEY_MAX)
    lease, shards = Lease("a", Position("150"), hash_range=left), [Shard("a", left, "100"), Shard("b", right, "100")]
    (found,) = rows([lease], shards)
    assert "1 open shard has no row" in found.words
    (found,) = rows([lease], shards, corrupt=(("b", "no checkpoint"),))
    assert "cannot be read" in found.words
    twice = [findings.fail("Kinesis", "expired", "renew them"), findings.fail("DynamoDB", "expired", "renew them")]
    assert [one.remedy for one in findings.with_one_remedy(twice)] == ["renew them", ""]


def test_a_missing_table_is_well_only_where_no_fleet_reports() -> None:
    old, young = WorkerReport("w-1", 900), WorkerReport("w-2", 990)
    rules = ViewRules(10.0)
    assert findings.missing_table("app", [], 1000.0, rules).health is Health.OK
    assert findings.missing_table("app", [old], 1000.0, rules).health is Health.OK
    found = findings.missing_table("app", [old, young], 1000.0, rules)
    assert (found.health, "worker w-2 reported 10 s ago" in found.words) == (Health.FAIL, True)


@pytest.mark.parametrize(
    ("reports", "is_3x", "health", "words"),
    [
        ([], True, Health.WARN, "all are workers that do not report (KCL 2.x, or gone); the fleet works by"),
        ([], False, Health.OK, "all are workers that do not report"),
        (["java"], True, Health.OK, "all run Java 3.x"),
        (["java", "mld 1"], True, Health.OK, "2 kinds share the table: Java 3.x, mld 1"),
        (["mld 1", "mld 2"], False, Health.WARN, "3 kinds share the table: mld 1, mld 2, workers that do not report"),
    ],
)
def test_who_shares_the_table(reports: list[str], is_3x: bool, health: Health, words: str) -> None:
    told = [
        WorkerReport("java" if kind == "java" else kind, 0, mld={} if kind == "java" else {"version": kind[4:]})
        for kind in reports
    ]
    lease = Lease("a", Position("150"), owner="java", hash_range=ALL)
    status = fleet_status([lease], told, None, 0.0, ViewRules(10.0))
    (found,) = [one for one in findings.rows_findings(FleetSight(fleet=status), is_3x=is_3x) if one.about == "workers"]
    assert (found.health, words in found.words) == (health, True), found.words


def test_a_worker_that_tells_its_lag_is_no_java_worker() -> None:
    lease = Lease("a", Position("150"), owner="w1", hash_range=ALL, status=ShardStatus("idle", 0, 0))
    status = fleet_status([lease], (), None, 0.0, ViewRules(10.0))
    assert "all run mld" in {one.words for one in findings.rows_findings(FleetSight(fleet=status))}


def test_a_machine_that_is_too_small_for_all_shards_warns() -> None:
    limits = {None: Health.OK, 600: Health.WARN, 700: Health.OK}
    assert {files: findings.files_finding(100, 1, files).health for files in limits} == limits


def test_several_children_of_a_shard_take_as_many_times_the_files() -> None:
    found = findings.files_finding(100, 8, 4000)
    assert found.health is Health.WARN
    assert "100 shards with 8 children each take about 4900" in found.words
    assert findings.files_finding(100, 8, 4900).health is Health.OK


def test_a_key_is_hinted_at_only() -> None:
    assert findings.key_hint("AKIAEXAMPLE1234567890") == "…7890"
    assert findings.key_hint("short") == findings.key_hint(None) == "…"


def test_a_daemon_that_runs_here_says_what_it_has_against_its_files() -> None:
    status = {"pid": 7, "configuration": {"loadedAt": 900.0}, "faults": []}
    (found,) = findings.daemon_findings(status)
    assert (found.health, found.about) == (Health.OK, "daemon 7")
    own = Own(worker="w", refused={"app.properties": "maxRecords: no number"}, waiting=["maxRecords"], holes={None: 1})
    faults = [fault_value(one) for one in faults_of(FleetSight(own=own))]
    refused, waiting = findings.daemon_findings({**status, "faults": faults})
    assert refused.health is waiting.health is Health.WARN
    assert "no number" in refused.words and "a start fails" in refused.words and refused.remedy == "mld check"
    assert "maxRecords needs a restart" in waiting.words
    assert list(findings.daemon_findings({"pid": 7})) == [], "one of an older version"
