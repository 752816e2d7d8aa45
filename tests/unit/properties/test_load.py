"""`load`: required keys, unknown keys, conflicts, regions, overrides, substitution, strictness, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mld import properties
from mld.properties.loader import load
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.values import InitialPositionKind, InitialPositionSetting
from tests.unit.properties.conftest import FIRST_LINE_AFTER_MINIMUM, Configure, problems, remarks_on

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"


def test_a_minimal_file_has_all_defaults_and_no_remark(configure: Configure) -> None:
    loaded = configure()
    settings = loaded.settings
    assert loaded.remarks == ()
    assert (settings.child.command, settings.application_name, settings.stream_name) == ("child", "app", "s")
    assert (settings.lease_table.name, settings.fanout.consumer_name) == ("app", "app")
    assert settings.worker_metrics_table.name == "app-WorkerMetricStats"
    assert settings.coordinator_state_table.name == "app-CoordinatorState"
    assert settings.worker_id is None
    assert settings.child.reply_timeout_s is None
    assert settings.shutdown_grace_s == 25.0
    assert settings.initial_position == InitialPositionSetting(InitialPositionKind.LATEST)
    assert settings.reader.idle_interval_s == 1.5
    assert settings.fleet.assignment_interval_s == 20.0
    assert settings.dynamo_db.credentials == settings.kinesis.credentials
    assert settings.child.protocol_version == 2


def test_all_missing_keys_are_named_at_once_in_the_order_of_java(tmp_path: Path) -> None:
    path = tmp_path / "empty.properties"
    path.write_bytes(b"")
    expected = ["executableName", "applicationName", "streamName", "AwsCredentialsProvider"]
    assert [problem.split()[0] for problem in problems(lambda: load(path))] == expected


@pytest.mark.parametrize("key", ["executableName", "applicationName", "streamName", "AwsCredentialsProvider"])
def test_a_blank_required_key_is_an_error(configure: Configure, key: str) -> None:
    assert [problem.split()[0] for problem in problems(lambda: configure(f"{key}=  ", without=[key]))] == [key]


def test_an_error_names_place_key_and_remedy_one_problem_a_line(configure: Configure) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure("maxRecords=many\nfailoverTimeMillis=1s")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    place = f"app.properties:{FIRST_LINE_AFTER_MINIMUM}"
    assert lines[0].endswith(f"{place}: maxRecords: is not a whole number; write decimal digits only")


def test_a_bad_arn_is_not_reported_as_a_missing_stream_too(configure: Configure) -> None:
    found = problems(lambda: configure("streamArn=arn:x", without=["streamName"]))
    assert [problem.split()[0] for problem in found] == ["streamArn"]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("FailoverTimeMillis=1", "write failoverTimeMillis"),
        ("dynamodbEndpoint=http://x", "write dynamoDBEndpoint"),
        ("failoverTimeMilis=1", "did you mean failoverTimeMillis?"),
        ("strict=true", "did you mean mld.strict?"),
        ("timestampAtInitialPositionInStream=1", "use initialPositionInStreamExtended with epoch seconds"),
        ("skipShardSyncAtStartupIfLeasesExist=true", "use skipShardSyncAtWorkerInitializationIfLeasesExist"),
        ("kinesisCredentialsProvider.class=X", "use AwsCredentialsProvider"),
        ("AWSCREDENTIALSPROVIDERDYNAMODB=x", "write AwsCredentialsProviderDynamoDB"),
    ],
)
def test_unknown_keys_are_warned_about_with_what_to_write(configure: Configure, line: str, remedy: str) -> None:
    loaded = configure(line)
    assert [remark.remedy for remark in loaded.remarks] == [remedy]
    assert loaded.remarks[0].level is Level.WARNING


@pytest.mark.parametrize("value", ["lease", "worker"])
def test_a_file_with_worker_heartbeats_starts_and_is_told_what_makes_the_bill_smaller(
    configure: Configure, value: str
) -> None:
    (remark,) = configure(f"mld.heartbeat={value}").remarks
    assert (remark.level, remark.message) == (Level.WARNING, "is a key of mld 0.2 and is ignored")
    assert "raise failoverTimeMillis: 30000 in place of 10000 is a third of the writes" in remark.remedy


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("mld.childLog=raw", "become fields of the daemon's own lines"),
        ("mld.childRestartsMax=7", "gives up after 5 restarts"),
        ("mld.formerStreamsWait=PT5M", "rows are deleted after an hour"),
        ("mld.recordStreamName=true", "MLD_STREAM_NAME"),
        ("mld.schemaRegistry.endpoint=http://x", "set AWS_ENDPOINT_URL_GLUE"),
        ("mld.schemaRegistry.region=eu-west-1", "in the region of Kinesis"),
    ],
)
def test_a_key_that_was_removed_is_ignored_with_what_to_do_instead(
    configure: Configure, line: str, remedy: str
) -> None:
    (remark,) = configure(line).remarks
    assert (remark.level, remark.message) == (Level.WARNING, "is a key of mld 0.2 and is ignored")
    assert remark.remedy.startswith("remove it")
    assert remedy in remark.remedy


@pytest.mark.parametrize("line", ["a.b.c=1", ".foo=1", "streamName.x=1", "a[=1", "zzz=1", "kinesisClient.foo=1"])
def test_unknown_keys_are_never_fatal(configure: Configure, line: str) -> None:
    assert [remark.level for remark in configure(line).remarks] == [Level.WARNING]


def test_the_prefix_of_credentials_keys_may_have_any_case(configure: Configure) -> None:
    loaded = configure("AWSCREDENTIALSPROVIDERDynamoDB=ProfileCredentialsProvider|leases")
    assert str(loaded.settings.dynamo_db.credentials) == "ProfileCredentialsProvider|leases"
    assert loaded.remarks == ()


def test_the_last_line_of_a_key_counts_with_a_warning(configure: Configure) -> None:
    loaded = configure("workerId=a\nworkerIdentifier=b\ntableName=x\ntableName=y")
    assert (loaded.settings.worker_id, loaded.settings.lease_table.name) == ("b", "y")
    assert "is the same setting as workerId" in remarks_on(loaded, "workerIdentifier")[0]
    assert "already given" in remarks_on(loaded, "tableName")[0]


def test_an_override_beats_the_file_without_a_word(configure: Configure) -> None:
    loaded = configure("workerIdentifier=a\nmaxRecords=5", ["maxRecords=7", "workerId=b"])
    assert (loaded.settings.reader.records_max, loaded.settings.worker_id) == (7, "b")
    assert remarks_on(loaded, "workerId") == []
    assert next(row.source for row in loaded.effective if row.key == "maxRecords") == "-D"


@pytest.mark.parametrize("override", ["maxRecords", "=5", ""])
def test_a_malformed_override_is_an_error(configure: Configure, override: str) -> None:
    assert problems(lambda: configure("", [override])) == [" override 1 is not key=value"]


def test_an_override_may_hold_equals_signs(configure: Configure) -> None:
    assert configure("", ["executableName=child --a=b"]).settings.child.command == "child --a=b"


def test_environment_variables_are_put_in(configure: Configure) -> None:
    loaded = configure("tableName=${A}-${B:-two}-${EMPTY:-three}-$${C}", env={"A": "one", "EMPTY": ""})
    assert loaded.settings.lease_table.name == "one-two-three-${C}"


@pytest.mark.parametrize(
    ("value", "problem"),
    [("${GONE}", "environment variable GONE is not set"), ("${a.b}", "no NAME}"), ("${OPEN", "no NAME}")],
)
def test_a_reference_that_leads_nowhere_is_an_error(configure: Configure, value: str, problem: str) -> None:
    assert problem in problems(lambda: configure(f"tableName={value}"))[0]


def test_references_in_unknown_keys_do_not_matter(configure: Configure) -> None:
    assert len(configure("nobodyKnowsThis=${GONE}").remarks) == 1


def test_the_arn_names_the_stream_and_beats_the_name(configure: Configure) -> None:
    loaded = configure(f"streamArn={ARN}", without=["regionName"])
    assert loaded.settings.stream_name == "orders"
    assert loaded.settings.stream_arn == ARN
    assert "is ignored" in remarks_on(loaded, "streamName")[0]


@pytest.mark.parametrize(
    ("text", "env", "expected"),
    [
        ("regionName=eu-west-1", {"AWS_REGION": "us-east-1"}, "eu-west-1"),
        (f"streamArn={ARN}", {}, "eu-central-1"),
        (f"streamArn={ARN}", {"AWS_REGION": "us-east-1"}, "eu-central-1"),
        ("", {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-2"}, "us-east-1"),
        ("", {"AWS_DEFAULT_REGION": "us-east-2"}, "us-east-2"),
        ("", {}, None),
    ],
)
def test_the_region_comes_from_key_arn_or_environment(
    configure: Configure, text: str, env: dict[str, str], expected: str | None
) -> None:
    settings = configure(text, env=env, without=["regionName"]).settings
    assert settings.region_name == expected
    assert (settings.kinesis.region, settings.dynamo_db.region, settings.cloud_watch.region) == (expected,) * 3


def test_a_client_may_have_a_region_and_an_endpoint_of_its_own(configure: Configure) -> None:
    text = "dynamoDbClient.region=us-east-2\ndynamoDbClient.endpointOverride=http://localhost:8000"
    loaded = configure(text)
    assert (loaded.settings.kinesis.region, loaded.settings.dynamo_db.region) == ("eu-west-1", "us-east-2")
    assert loaded.settings.dynamo_db.endpoint == "http://localhost:8000"
    assert "wins over regionName" in remarks_on(loaded, "dynamoDbClient.region")[0]


def test_regions_that_contradict_the_arn_are_warned_about(configure: Configure) -> None:
    assert "is not the region used" in remarks_on(configure(f"streamArn={ARN}"), "streamArn")[0]
    other = configure(f"streamArn={ARN}", env={"AWS_REGION": "us-east-1"}, without=["regionName"])
    assert "Java uses us-east-1" in remarks_on(other, "streamArn")[0]


def test_the_extended_initial_position_wins_in_any_order(configure: Configure) -> None:
    lines = ["initialPositionInStream=LATEST", "initialPositionInStreamExtended=1767225600"]
    for order in (lines, lines[::-1]):
        loaded = configure("\n".join(order))
        assert loaded.settings.initial_position == InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, 1767225600)
        assert remarks_on(loaded, "initialPositionInStream")


def test_strict_turns_warnings_into_errors_and_leaves_information_alone(configure: Configure) -> None:
    assert configure("mld.strict=true\nprocessingLanguage=java").settings.strict is True
    assert problems(lambda: configure("mld.strict=true\nfoo=1")) == ["foo is no known key and is ignored"]
    assert problems(lambda: configure("foo=1", ["mld.strict=true"])) == ["foo is no known key and is ignored"]


def test_an_empty_text_counts_as_not_set_with_a_warning(configure: Configure) -> None:
    loaded = configure("tableName=\nstreamArn=  ")
    assert (loaded.settings.lease_table.name, loaded.settings.stream_name) == ("app", "s")
    assert remarks_on(loaded, "tableName")


def test_the_effective_values_say_where_they_come_from(configure: Configure) -> None:
    loaded = configure("maxRecords=5", env={"AWS_REGION": "us-east-1"}, without=["regionName"])
    rows = {row.key: (row.value, row.source) for row in loaded.effective}
    assert rows["maxRecords"] == ("5", f"{loaded.path}:{FIRST_LINE_AFTER_MINIMUM - 1}")
    assert rows["failoverTimeMillis"] == ("10000", "default")
    assert rows["timeoutInSeconds"] == (None, "default")
    assert rows["tableName"] == ("app", "applicationName")
    assert rows["regionName"] == ("us-east-1", "environment AWS_REGION")
    assert rows["kinesisClient.region"] == ("us-east-1", "environment AWS_REGION")
    assert rows["leaseAssignmentIntervalMillis"] == ("20000", "failoverTimeMillis")
    assert rows["AwsCredentialsProviderDynamoDB"] == ("DefaultCredentialsProvider", "AwsCredentialsProvider")


def test_everything_shown_is_plain_json(configure: Configure) -> None:
    loaded = configure("workerMetricsTags=a=b\nfoo=1\nstaleWorkerMetricsEntryCleanupDuration=PT1H")
    shown = json.loads(json.dumps(loaded.to_json()))
    assert {value["key"]: value["value"] for value in shown["values"]}["workerMetricsTags"] == "a=***"
    assert [remark["key"] for remark in shown["remarks"]].count("foo") == 1


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.properties"
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(ConfigurationError, match="is larger than"):
        load(path)


def test_a_malformed_escape_is_a_configuration_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.properties"
    path.write_bytes(b"a=1\nb=C:\\users\n")
    with pytest.raises(ConfigurationError, match=r"bad\.properties:2: .*hexadecimal"):
        load(path)


@pytest.mark.parametrize("name", ["sample.properties", "streams.properties", "dynamodb-streams.properties"])
def test_the_shipped_samples_are_free_of_remarks(name: str) -> None:
    sample = Path(properties.__file__).parent / "samples" / name
    assert load(sample, env={"AWS_REGION": "eu-west-1"}).remarks == ()


@pytest.mark.parametrize("worker", ["Leader", "Migration3.0", "TableMigration3.5", "s", "shardId-000000000000"])
def test_a_worker_id_that_is_the_key_of_another_row_is_an_error(configure: Configure, worker: str) -> None:
    found = problems(lambda: configure(f"workerId={worker}"))
    assert found == [f"workerId {worker} is the key of another row of the lease table"]
