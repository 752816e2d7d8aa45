"""`mld migrate-streams` on a real application: daemons of both forms before and after, and on another DynamoDB."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, SHORT_LEASE, MakeWorld, World
from tests.support.patience import PATIENCE_S
from tests.support.servers import REGION, Ministack, ServerProcess

ONE: Mapping[str, object] = {}
FAST = {**SHORT_LEASE, "workerMetricsReporterFreqInMillis": 1000}


def several(world: World) -> dict[str, object]:
    """The keys of a file that names a list instead of a stream."""
    return {"streamName": "", "mld.streams": world.stream}


def command(world: World, *rest: object, keys: Mapping[str, object] = ONE) -> subprocess.CompletedProcess[str]:
    file = world.directory / "operator.properties"
    values = world.keys("operator", "true", {**FAST, **keys})
    file.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    directory = world.directory / "operator"
    directory.mkdir(exist_ok=True)
    return mld("migrate-streams", "-p", file, *rest, environment=ENVIRONMENT, cwd=directory)


def rows_of(client: Any, table: str) -> dict[str, Any]:
    items = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {row["leaseKey"]["S"]: row for row in items if row.get("entityType", {}).get("S", "LEASE") == "LEASE"}


def places(rows: Mapping[str, Any]) -> dict[str, str]:
    return {key.rpartition(":")[2]: row["checkpoint"]["S"] for key, row in rows.items()}


def run_through(world: World, **keys: object) -> set[tuple[str, int]]:
    """A worker until everything is checkpointed, then a clean stop; what it delivered."""
    worker = f"w{len(world.daemons)}"
    daemon = world.daemon(worker, **{**FAST, **keys})
    last = {put.shard: str(put.sequence) for put in world.puts}
    world.until(lambda: _are_at(world, last), what="checkpoints at the last records")
    assert daemon.stop() == 0
    return {(life.shard, record.sequence) for life in world.history.lives(worker=worker) for record in life.delivered}


def _are_at(world: World, last: Mapping[str, str]) -> bool:
    if world.table not in world.dynamo.list_tables()["TableNames"]:
        return False
    return last.items() <= places(rows_of(world.dynamo, world.table)).items()


@pytest.mark.full
def test_daemons_of_both_forms_go_on_from_one_anothers_checkpoints(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.put(20)
    run_through(world)
    before = rows_of(world.dynamo, world.table)

    refused = world.daemon("refused", **FAST, **several(world))
    assert refused.wait(PATIENCE_S) == 1
    assert "mld migrate-streams" in refused.log()
    planned = command(world, "--to", "several", keys=several(world))
    assert planned.returncode == 0, planned.stderr
    assert "nothing was done; --execute does it" in planned.stdout
    assert rows_of(world.dynamo, world.table) == before

    done = command(world, "--to", "several", "--execute", keys=several(world))
    assert done.returncode == 0, done.stderr
    after = rows_of(world.dynamo, world.table)
    assert places(after) == places(before)
    assert all(key == f"{row['streamName']['S']}:{row['shardId']['S']}" for key, row in after.items())
    again = command(world, "--to", "several", "--execute", keys=several(world))
    assert again.stdout.endswith("nothing to do\n")

    new = {(put.shard, put.sequence) for put in world.put(20)}
    assert run_through(world, **several(world)) == new

    back = command(world, "--to", "one", "--execute")
    assert back.returncode == 0, back.stderr
    assert set(rows_of(world.dynamo, world.table)) == set(before)
    new = {(put.shard, put.sequence) for put in world.put(20)}
    assert run_through(world) == new


@pytest.mark.full
def test_on_another_dynamodb(ministack: Ministack, tmp_path: Path) -> None:
    """Conditions and types as that server has them: there and back leaves the rows as they were."""
    name = "migrated-elsewhere"
    kinesis, dynamo = ministack.client("kinesis"), ministack.client("dynamodb")
    try:
        kinesis.create_stream(StreamName=name, ShardCount=2)
        _wait_for(kinesis, dynamo, name)
        shards = kinesis.list_shards(StreamName=name)["Shards"]
        planted = {}
        for shard in shards:
            row = {
                "leaseKey": {"S": shard["ShardId"]},
                "leaseCounter": {"N": "12"},
                "ownerSwitchesSinceCheckpoint": {"N": "0"},
                "checkpoint": {"S": shard["SequenceNumberRange"]["StartingSequenceNumber"]},
                "checkpointSubSequenceNumber": {"N": "0"},
                "pendingCheckpoint": {"S": "TRIM_HORIZON"},
                "pendingCheckpointState": {"B": b"\x00\xff"},
                "startingHashKey": {"S": shard["HashKeyRange"]["StartingHashKey"]},
                "endingHashKey": {"S": shard["HashKeyRange"]["EndingHashKey"]},
                "childShardIds": {"SS": ["shardId-000000000008", "shardId-000000000009"]},
                "entityType": {"S": "LEASE"},
            }
            planted[shard["ShardId"]] = row
            dynamo.put_item(TableName=name, Item=row)
        for way in ("several", "one"):
            said = _on(ministack, tmp_path, name, "--to", way, "--execute")
            assert said.returncode == 0, said.stderr + said.stdout
            assert places(rows_of(dynamo, name)) == places(planted)
            assert all(":" in key for key in rows_of(dynamo, name)) is (way == "several")
        found = rows_of(dynamo, name)
        assert {key: _comparable(row) for key, row in found.items()} == {
            key: _comparable(row) for key, row in planted.items()
        }
    finally:
        kinesis.close()
        dynamo.close()


def _comparable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: sorted(value["SS"]) if "SS" in value else value for name, value in row.items()}


def _wait_for(kinesis: Any, dynamo: Any, name: str) -> None:
    dynamo.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    kinesis.get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1})


def _on(server: ServerProcess, directory: Path, name: str, *rest: object) -> subprocess.CompletedProcess[str]:
    values = {
        "executableName": "true",
        "applicationName": name,
        "streamName": name,
        "regionName": REGION,
        "kinesisEndpoint": server.endpoint,
        "dynamoDBEndpoint": server.endpoint,
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        **SHORT_LEASE,
    }
    file = directory / "elsewhere.properties"
    file.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return mld("migrate-streams", "-p", file, *rest, environment=ENVIRONMENT, cwd=directory)
