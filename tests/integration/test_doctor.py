"""`mld doctor` as a user types it, against servers, with one thing wrong at a time."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.certificates import write_certificate
from tests.support.forward_proxy import ForwardProxy
from tests.support.strict_aws import StrictAws

KEY, SECRET = "AKIAEXAMPLE1234567890", "the-very-secret-key"
Findings = dict[str, dict[str, str]]


def properties(world: World, **keys: object) -> Path:
    file = world.directory / "doctor.properties"
    mine = {**world.keys("w1", world.recorder(), keys), "metricsLevel": "NONE"}
    file.write_text("".join(f"{key} = {value}\n" for key, value in mine.items()))
    return file


def doctor(file: Path, *more: object, env: dict[str, str] = ENVIRONMENT) -> tuple[int, Findings]:
    """(exit code, the findings by what they are about; of several the worst)."""
    result = run(file, "-o", "json", *more, env=env)
    document = json.loads(result.stdout)
    order = ["ok", "warn", "fail"]
    found: Findings = {}
    for one in document["findings"]:
        before = found.get(one["about"])
        if before is None or order.index(one["state"]) > order.index(before["state"]):
            found[one["about"]] = one
    assert document["isWell"] is all(one["state"] != "fail" for one in document["findings"])
    return result.returncode, found


def run(*arguments: object, env: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    result = mld("doctor", *arguments, environment={**os.environ, **env})
    assert "Traceback" not in result.stderr, result.stderr
    return result


def states(found: Findings) -> dict[str, str]:
    return {about: one["state"] for about, one in found.items() if one["state"] != "ok"}


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(shards=2)


@pytest.mark.full
def test_before_the_first_start_everything_is_well(world: World) -> None:
    code, found = doctor(properties(world))
    assert (states(found), code) == ({"retention": "warn"}, 0)
    assert "the first start makes it" in found["lease table"]["words"]


def test_beside_a_running_fleet_each_permission_is_tried_and_nothing_changes(world: World) -> None:
    world.put(10)
    daemon = world.daemon()
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    before = world.leases()
    rows = world.dynamo.scan(TableName=world.table)["Count"]
    result = run(properties(world))
    assert result.returncode == 0
    assert re.search(
        r"^ok    table permissions: Scan, GetItem, .*, DeleteItem, Query are allowed$", result.stdout, re.M
    )
    assert re.search(r"^ok    lease rows: 2 rows, all of this stream$", result.stdout, re.M)
    assert re.search(r"^warn  retention: .*\n      -> Increase", result.stdout, re.M)
    assert world.leases() == before
    assert world.dynamo.scan(TableName=world.table)["Count"] == rows


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "about", "words"),
    [
        (
            {"service": "kinesis", "operation": "DescribeStreamSummary", "code": "AccessDeniedException"},
            "stream",
            "kinesis:DescribeStreamSummary is not allowed",
        ),
        (
            {"service": "kinesis", "operation": "GetRecords", "code": "AccessDeniedException"},
            "reading",
            "kinesis:GetRecords is not allowed",
        ),
        (
            {"service": "kinesis", "operation": "GetRecords", "code": "KMSAccessDeniedException"},
            "reading",
            "the stream's KMS key cannot be used",
        ),
        (
            {"service": "dynamodb", "operation": "DescribeTable", "code": "UnrecognizedClientException"},
            "lease table",
            "AWS does not accept the credentials",
        ),
        (
            {"service": "kinesis", "operation": "DescribeStreamSummary", "code": "ExpiredTokenException"},
            "stream",
            "the credentials have expired",
        ),
        (
            {
                "service": "dynamodb",
                "operation": "Scan",
                "contains": "-WorkerMetricStats",
                "code": "AccessDeniedException",
            },
            "fleet tables",
            "is not allowed",
        ),
        (
            {"service": "kinesis", "operation": "ListShards", "drop": True},
            "reading",
            "no answer",
        ),
    ],
    ids=lambda value: value.get("operation", "") + value.get("code", "") if isinstance(value, dict) else "",
)
def test_what_aws_refuses_fails_with_its_remedy(world: World, fault: dict[str, Any], about: str, words: str) -> None:
    world.aws.inject_faults(fault)
    code, found = doctor(properties(world))
    assert code == 1
    assert found[about]["state"] == "fail"
    assert words in found[about]["words"]
    assert found[about]["remedy"]


def test_a_missing_write_permission_is_found_without_writing(world: World) -> None:
    daemon = world.daemon()
    world.until(lambda: len(world.leases()) == 2, what="rows")
    assert daemon.stop() == 0
    denied = {"service": "dynamodb", "code": "AccessDeniedException"}
    world.aws.inject_faults({**denied, "operation": "UpdateItem"}, {**denied, "operation": "Query"})
    result = run(properties(world))
    assert result.returncode == 1
    for operation in ("UpdateItem", "Query"):
        assert re.search(rf"^fail  table permissions: dynamodb:{operation} is not allowed", result.stdout, re.M)
    assert "PutItem is not allowed" not in result.stdout


@pytest.mark.full
def test_other_readers_at_the_limit_are_a_warning(world: World) -> None:
    code = "ProvisionedThroughputExceededException"
    world.aws.inject_faults({"service": "kinesis", "operation": "GetRecords", "code": code})
    exit_code, found = doctor(properties(world))
    assert (exit_code, found["reading"]["state"]) == (0, "warn")
    assert "throttled" in found["reading"]["words"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("define", "about", "words"),
    [
        ("streamName=nowhere", "stream", "ResourceNotFoundException"),
        ("kinesisEndpoint=http://127.0.0.1:1", "Kinesis endpoint", "no connection to 127.0.0.1:1: Connection refused"),
        ("kinesisEndpoint=http://nowhere.invalid", "Kinesis endpoint", "nowhere.invalid, the name of the endpoint"),
        ("dynamoDBEndpoint=http://127.0.0.1:1", "DynamoDB endpoint", "no connection to 127.0.0.1:1"),
        ("executableName=./nowhere", "executableName", "no executable file './nowhere' is found"),
        ("mld.deadLetter=/etc/hostname/letters", "room for deadLetter", "/etc/hostname cannot be written to"),
        ("executableName=python3 nowhere.py", "executableName", "nowhere.py does not exist"),
    ],
)
def test_what_is_not_there_is_named(world: World, define: str, about: str, words: str) -> None:
    code, found = doctor(properties(world), "-D", define)
    assert code == 1
    assert found[about]["state"] == "fail"
    assert words in found[about]["words"]
    assert found["open files"]["state"] == "ok", "what does not depend on it is looked at all the same"


@pytest.mark.full
def test_a_table_of_another_stream_is_found(world: World, make_world: MakeWorld) -> None:
    daemon = world.daemon()
    world.put(20)
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    world.kinesis.create_stream(StreamName=f"{world.stream}-other", ShardCount=3)
    world.until(
        lambda: (
            world.kinesis.describe_stream_summary(StreamName=f"{world.stream}-other")["StreamDescriptionSummary"][
                "StreamStatus"
            ]
            == "ACTIVE"
        )
    )
    code, found = doctor(properties(world), "-D", f"streamName={world.stream}-other")
    assert code == 1
    assert "belongs to another stream" in found["lease rows"]["words"]


@pytest.mark.full
def test_a_table_that_is_none_of_ours_is_left_alone(world: World) -> None:
    world.dynamo.create_table(
        TableName=f"{world.table}-x",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    code, found = doctor(properties(world), "-D", f"applicationName={world.table}-x")
    assert code == 1
    assert "is no lease table: its key is id (HASH)" in found["lease table"]["words"]


@pytest.mark.full
def test_the_fan_out_consumer_is_looked_for(world: World) -> None:
    _, found = doctor(properties(world), "-D", "retrievalMode=FANOUT")
    assert "is not registered yet" in found["fan-out consumer"]["words"]
    assert "SubscribeToShard was not tried" in found["reading"]["words"]
    fault = {"service": "kinesis", "operation": "GetRecords", "code": "AccessDeniedException"}
    world.aws.inject_faults(fault)
    _, found = doctor(properties(world), "-D", "retrievalMode=FANOUT")
    assert (found["reading"]["state"], "losses to retention" in found["reading"]["words"]) == ("warn", True)


SUMMARY = {
    "StreamDescriptionSummary": {
        "StreamName": "s",
        "StreamARN": "arn:aws:kinesis:us-east-1:123456789012:stream/s",
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 168,
        "StreamCreationTimestamp": 1,
        "EnhancedMonitoring": [],
        "OpenShardCount": 0,
    }
}


def test_a_clock_that_is_ten_minutes_off_fails_though_requests_get_through(world: World) -> None:
    documents = {"DescribeStreamSummary": SUMMARY, "ListShards": {"Shards": []}}
    with StrictAws(ahead_s=600.0, secrets={KEY: SECRET}, documents=documents) as aws:
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        code, found = doctor(properties(world), "-D", f"kinesisEndpoint={aws.url}", env=env)
    assert code == 1
    assert found["stream"]["state"] == "ok"
    assert re.search(r"clock is (599|600) s behind that of AWS", found["clock"]["words"])


def test_wrong_credentials_are_refused_and_never_printed(world: World) -> None:
    with StrictAws(secrets={KEY: "another secret"}) as aws:
        env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        result = run(properties(world), "-D", f"kinesisEndpoint={aws.url}", env=env)
    assert result.returncode == 1
    assert "fail  stream: AWS does not accept the credentials" in result.stdout
    assert "key …7890" in result.stdout
    for secret in (KEY, SECRET):
        assert secret not in result.stdout + result.stderr


@pytest.mark.full
def test_no_credentials_at_all(world: World, tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    result = mld("doctor", properties(world), environment=bare)
    assert result.returncode == 1
    assert "fail  Kinesis credentials: " in result.stdout


def test_a_file_that_cannot_be_used_is_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "bad.properties"
    file.write_text("streamName = x\n")
    assert run(file).returncode == 2


@pytest.mark.full
def test_an_endpoint_that_nobody_vouches_for_fails_at_tls(world: World) -> None:
    certificate, key = write_certificate(world.directory, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with StrictAws(secrets={}, context=context) as aws:
        code, found = doctor(properties(world), "-D", f"kinesisEndpoint={aws.url}")
        assert code == 1
        assert f"no trusted TLS with 127.0.0.1:{aws.port}" in found["Kinesis endpoint"]["words"]
        trusting = {**ENVIRONMENT, "AWS_CA_BUNDLE": str(certificate)}
        _, found = doctor(properties(world), "-D", f"kinesisEndpoint={aws.url}", env=trusting)
        assert re.search(r"answers, TLSv1\.[23]$", found["Kinesis endpoint"]["words"])


@pytest.mark.full
def test_a_proxy_is_named_and_one_that_is_not_there_fails(world: World) -> None:
    with ForwardProxy(world.directory) as proxy:
        define = f"kinesisClient.proxyUrl=http://user:secret@{proxy.address}"
        code, found = doctor(properties(world), "-D", define)
    assert code == 0, states(found)
    assert f"through the proxy {proxy.address}" in found["Kinesis endpoint"]["words"]
    code, found = doctor(properties(world), "-D", define)
    assert code == 1
    assert f"no connection to {proxy.address}" in found["Kinesis endpoint"]["words"]
    assert "secret" not in json.dumps(found)
