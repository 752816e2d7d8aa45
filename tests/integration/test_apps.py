"""`mld apps` against a server with the tables of several applications, and with permissions that are missing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from mld.cli import commands
from mld.core.positions import TRIM_HORIZON
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from mld.operating.account_view import ROWS_MAX
from tests.integration.world import ASSIGNED, ENVIRONMENT, MakeWorld, World


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(shards=2)


def run(world: World, *arguments: str) -> Any:
    words = ["apps", "--region", "us-east-1", "-D", f"dynamoDBEndpoint={world.aws.endpoint}", *arguments]
    return CliRunner().invoke(commands, words, env={**ENVIRONMENT, "MLD_PROPERTIES": ""}, prog_name="mld")


def apps(world: World) -> dict[str, Any]:
    result = run(world, "-o", "json")
    assert result.exit_code == 0, result.output
    return {one["table"]: one for one in json.loads(result.stdout)["applications"]}


def make_table(world: World, name: str, key: str = "leaseKey") -> None:
    world.dynamo.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )


def test_applications_are_told_by_their_tables_and_so_is_what_nobody_knows(world: World) -> None:
    daemon = world.daemon("w1", **ASSIGNED)
    world.put(4)
    world.until_delivered()
    java = f"{world.table}-java"
    for name in (java, f"{java}-empty"):
        make_table(world, name)
    make_table(world, f"{java}-CoordinatorState", "key")
    make_table(world, f"{world.table}-other", "id")
    row = new_row(Lease("shardId-000000000000", TRIM_HORIZON, owner="j1"))
    world.dynamo.put_item(TableName=java, Item=row)
    world.until(lambda: apps(world)[world.table]["behindSeconds"] is not None, what="a lag")
    found = apps(world)
    assert f"{world.table}-other" not in found and f"{java}-CoordinatorState" not in found
    ours = found[world.table]
    assert (ours["streams"], ours["workers"], ours["openShards"], ours["note"]) == ([world.stream], 1, 2, None)
    assert ours["behindSeconds"] < 60
    theirs = found[java]
    assert theirs["companions"] == [f"{java}-CoordinatorState"]
    assert (theirs["streams"], theirs["behindSeconds"]) == (None, None)
    assert theirs["note"] == "1 of 1 shards do not tell: its worker does not tell"
    assert found[f"{java}-empty"]["openShards"] == 0
    table = run(world).stdout
    assert table.splitlines()[0].split("  ")[0] == "application"
    assert "tables of KCL 3.0 to 3.4 beside it" in table
    daemon.stop()


def test_each_permission_that_is_missing_is_named(world: World) -> None:
    make_table(world, f"{world.table}-denied")
    denied = {"service": "dynamodb", "code": "AccessDeniedException", "count": 1000}
    try:
        world.aws.inject_faults({**denied, "operation": "Scan"})
        assert apps(world)[f"{world.table}-denied"]["note"] == "its rows: not seen, allow dynamodb:Scan"
        world.aws.inject_faults({**denied, "operation": "DescribeTable"})
        result = run(world)
        assert result.exit_code == 0
        assert f"{world.table}-denied: not seen, allow dynamodb:DescribeTable" in result.stdout
        world.aws.inject_faults({**denied, "operation": "ListTables"})
        result = run(world)
        assert result.exit_code == 1
        assert "the tables: not seen, allow dynamodb:ListTables" in result.stderr
    finally:
        world.aws.clear_faults()


def test_a_file_that_cannot_be_used_ends_with_2(world: World) -> None:
    assert run(world, "-D", "dynamoDBEndpoint=nonsense").exit_code == 2


def test_a_large_table_costs_one_page_and_its_figures_say_so(world: World) -> None:
    name = f"{world.table}-large"
    make_table(world, name)
    leases = [Lease(f"shardId-{number:012}", TRIM_HORIZON) for number in range(ROWS_MAX + 5)]
    for start in range(0, len(leases), 25):
        puts = [{"PutRequest": {"Item": new_row(lease)}} for lease in leases[start : start + 25]]
        world.dynamo.batch_write_item(RequestItems={name: puts})
    world.aws.clear_log()
    found = apps(world)[name]
    assert found["openShards"] == ROWS_MAX
    assert found["note"].startswith(f"of the first {ROWS_MAX} rows; ")
    calls, tables = world.aws.log(), len(world.dynamo.list_tables()["TableNames"])
    assert calls["dynamodb.DescribeTable"] <= tables
    assert calls["dynamodb.Scan"] <= tables
    assert calls["dynamodb.ListTables"] == 1
