"""A daemon that cannot start says why in one sentence, with the right exit code, and leaves the table as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S
from tests.support.servers import free_port

FAILS = 1
MISCONFIGURED = 2
START_TIMEOUT_S = PATIENCE_S


def table_with_checkpoints(world: World) -> dict[str, str]:
    world.put(40)
    daemon = world.daemon("before")
    world.until_delivered()
    world.until_caught_up()
    assert daemon.stop() == 0
    return checkpoints(world)


def checkpoints(world: World) -> dict[str, str]:
    return {key: str(lease.checkpoint) for key, lease in world.leases().items()}


def failure_of(daemon: Daemon) -> str:
    """Its last word, which must be one sentence on one line."""
    assert daemon.wait(START_TIMEOUT_S) == FAILS
    assert "Traceback" not in daemon.log()
    (event,) = daemon.with_action("daemon_failed")
    assert event["level"] == "ERROR"
    return str(event["message"])


def test_nothing_that_listens_as_dynamodb_is_a_failure(make_world: MakeWorld) -> None:
    world = make_world()
    daemon = world.daemon(dynamoDBEndpoint=f"http://127.0.0.1:{free_port()}")
    message = failure_of(daemon)
    assert "gave up after 20 attempts" in message
    assert "127.0.0.1" in message


def test_nothing_that_listens_as_kinesis_is_a_failure_and_makes_no_rows(make_world: MakeWorld) -> None:
    world = make_world()
    daemon = world.daemon(kinesisEndpoint=f"http://127.0.0.1:{free_port()}", maxListShardsRetryAttempts=1)
    assert "127.0.0.1" in failure_of(daemon)
    assert world.leases() == {}


@pytest.mark.parametrize(("service", "operation"), [("dynamodb", "Scan"), ("kinesis", "ListShards")])
def test_access_denied_is_a_failure_that_names_the_call(make_world: MakeWorld, service: str, operation: str) -> None:
    world = make_world()
    reason = f"User is not authorized to perform: {service}:{operation}"
    world.aws.inject_faults(
        {
            "service": service,
            "operation": operation,
            "code": "AccessDeniedException",
            "message": reason,
            "contains": world.stream,
        }
    )
    message = failure_of(world.daemon(maxListShardsRetryAttempts=1))
    assert operation in message
    assert reason in message


def test_a_wrong_stream_name_beside_existing_leases_is_a_failure_and_touches_no_checkpoint(
    make_world: MakeWorld,
) -> None:
    world = make_world(shards=2)
    before = table_with_checkpoints(world)
    message = failure_of(world.daemon(streamName="no-such-stream"))
    assert "no-such-stream" in message
    assert "streamName" in message
    assert checkpoints(world) == before


@pytest.mark.full
def test_the_table_of_another_stream_is_refused_and_stays_as_it_was(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    before = table_with_checkpoints(world)
    other = f"other-{world.stream}"
    world.kinesis.create_stream(StreamName=other, ShardCount=2)
    message = failure_of(world.daemon(streamName=other, tableName=world.table))
    assert "belongs to another stream" in message
    assert checkpoints(world) == before


CONFIGURATION_ERRORS = {
    "failoverTimeMillis": "soon",
    "executableName": "/nowhere/processor",
    "AwsCredentialsProvider": "NoSuchProvider",
    "kinesisEndpoint": "localhost:4567",
    "initialPositionInStream": "MIDDLE",
    "mld.childFailurePolicy": "ignore",
}


@pytest.mark.parametrize("key", CONFIGURATION_ERRORS)
def test_a_bad_value_is_reported_with_key_place_and_remedy(make_world: MakeWorld, key: str) -> None:
    world = make_world()
    daemon = world.daemon(**{key: CONFIGURATION_ERRORS[key]})
    assert daemon.wait() == MISCONFIGURED
    assert "Traceback" not in daemon.log()
    line = next(line for line in daemon.lines if key in line)
    assert str(daemon.file) in line
    assert ";" in line  # what is wrong; what to do
    assert daemon.survivors() == []


@pytest.mark.parametrize("what", ["missing", "directory"])
def test_a_file_that_cannot_be_read_is_reported_with_its_path(tmp_path: Path, what: str) -> None:
    file = tmp_path / "app.properties"
    if what == "directory":
        file.mkdir()
    daemon = Daemon(tmp_path, {}, name="unused")
    daemon.command[daemon.command.index(str(daemon.file))] = str(file)
    with daemon:
        assert daemon.wait() == MISCONFIGURED
        assert str(file) in daemon.log()
        assert "Traceback" not in daemon.log()


def test_secrets_reach_neither_the_log_nor_the_child(make_world: MakeWorld) -> None:
    world = make_world()
    secrets = ["EXTERNAL-ID-0001", "ARGUMENT-0002", "AKIAOWNKEY0003", "own-secret-0004"]
    (world.directory / "own_keys.py").write_text(
        f"def provide(argument):\n    return {{'access_key': {secrets[2]!r}, 'secret_key': {secrets[3]!r}}}\n"
    )
    role = f"StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/reader|session|externalId={secrets[0]}"
    environment = {**ENVIRONMENT, "PYTHONPATH": str(world.directory)}
    daemon = world.daemon(
        log="debug",
        process={"environment": environment},
        AwsCredentialsProvider=f"own_keys:provide|{secrets[1]}",
        AwsCredentialsProviderDynamoDB=f"{role}|endpoint={world.aws.endpoint}^us-east-1",
    )
    world.put(20)
    world.until_delivered()
    pid = world.history.lives()[0].pid
    child_environment = dict(
        pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair
    )
    argv = Path(f"/proc/{pid}/cmdline").read_text()
    assert daemon.stop() == 0
    assert not [secret for secret in secrets if secret in daemon.log()]
    assert not [secret for secret in secrets if secret in argv]
    added = {name: value for name, value in child_environment.items() if daemon.environment.get(name) != value}
    assert set(added) == {
        "MLD_SHARD_ID",
        "MLD_LEASE_KEY",
        "MLD_ANCESTOR_SHARD_IDS",
        "MLD_CHILD_NUMBER",
        "MLD_CHILDREN_PER_SHARD",
        "MLD_STREAM_NAME",
        "MLD_APPLICATION_NAME",
        "MLD_WORKER_ID",
        "MLD_PROPERTIES_FILE",
        "MLD_OVERRIDES",
        "MLD_DAEMON_PID",
    }
    assert not [secret for secret in secrets if secret in json.dumps(added)]
    assert added["MLD_PROPERTIES_FILE"] == str(daemon.file)
    assert world.aws.log().get("sts.AssumeRole", 0) >= 1
