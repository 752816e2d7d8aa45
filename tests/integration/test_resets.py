"""`mld reset`, `skip`, `export` and `restore` on a real application: daemons before and after.

A daemon processes what is there and ends, a command acts, and the next daemon shows what the act has done: everything
from the place on is delivered again, and nothing is missing that was not asked for.
"""

from __future__ import annotations

import base64
import json
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from mld.core.positions import LATEST, TRIM_HORIZON, Position
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from tests.acceptance.commands import mld
from tests.integration import history
from tests.integration.history import Put
from tests.integration.world import ASSIGNED, ENVIRONMENT, SHORT_LEASE, MakeWorld, World
from tests.support.kpl import User, aggregate
from tests.support.servers import ServerProcess

SHARD_0, SHARD_1, SHARD_2, SHARD_3 = (f"shardId-{number:012d}" for number in range(4))
Delivered = set[tuple[str, int]]


class Acted:
    """A world whose application a command acts on; the files it writes are in a directory of their own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cwd = world.directory / "operator"
        self.cwd.mkdir()

    # --- daemons ------------------------------------------------------------------------------------------------------

    def start(self, **keys: object) -> str:
        """Start a worker; its id."""
        worker = f"w{len(self.world.daemons)}"
        self.world.daemon(worker, **{**SHORT_LEASE, **keys})
        return worker

    def run_through(self, wanted: Delivered | None = None, **keys: object) -> Delivered:
        """A worker until it has delivered what is `wanted` and its checkpoints are at the last records, then a clean
        stop; what it delivered."""
        worker = self.start(**keys)
        self.world.daemons[-1].wait_for_event("lease_held")
        self.world.until(lambda: all(lease.owner == worker for lease in self.world.leases().values()))
        self.world.until(lambda: self.delivered_by(worker) >= (wanted or set()), what="what is wanted")
        self.world.until_caught_up()
        assert self.world.daemons[-1].stop() == 0
        return self.delivered_by(worker)

    def delivered_by(self, worker: str) -> Delivered:
        lives = self.world.history.lives(worker=worker)
        return {(life.shard, record.sequence) for life in lives for record in life.delivered}

    # --- commands -----------------------------------------------------------------------------------------------------

    def command(self, name: str, *rest: object, **keys: object) -> subprocess.CompletedProcess[str]:
        file = self.world.directory / "operator.properties"
        values = self.world.keys("operator", "true", {**SHORT_LEASE, **keys})
        file.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
        return mld(name, "-p", file, *rest, environment=ENVIRONMENT, cwd=self.cwd)

    def done(self, name: str, *rest: object, **keys: object) -> str:
        result = self.command(name, *rest, **keys)
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def refused(self, name: str, *rest: object, **keys: object) -> str:
        """What the command says; the rows are as they were."""
        before = self.rows()
        result = self.command(name, *rest, **keys)
        assert result.returncode == 1, result.stdout
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert {key: row["checkpoint"] for key, row in self.rows().items()} == {
            key: row["checkpoint"] for key, row in before.items()
        }
        return result.stderr

    # --- looking ------------------------------------------------------------------------------------------------------

    def rows(self) -> dict[str, Any]:
        if self.world.table not in self.world.dynamo.list_tables()["TableNames"]:
            return {}
        items = self.world.dynamo.scan(TableName=self.world.table)["Items"]
        return {row["leaseKey"]["S"]: row for row in items if row.get("entityType", {}).get("S", "LEASE") == "LEASE"}

    def checkpoints(self) -> dict[str, Position]:
        return {key: lease.checkpoint for key, lease in self.world.leases().items()}

    def arrival_of(self, put: Put) -> str:
        """When the record reached the stream, as a command takes it."""
        start = {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": str(put.sequence)}
        stream = self.world.stream
        iterator = self.world.kinesis.get_shard_iterator(StreamName=stream, ShardId=put.shard, **start)["ShardIterator"]
        records = self.world.kinesis.get_records(ShardIterator=iterator, Limit=1)["Records"]
        arrived: datetime = records[0]["ApproximateArrivalTimestamp"]
        return arrived.astimezone(UTC).isoformat()

    def first_arrival_of(self, puts: list[Put]) -> str:
        firsts = {put.shard: put for put in reversed(puts)}.values()
        return min(self.arrival_of(put) for put in firsts)


def names(puts: list[Put]) -> Delivered:
    return {(put.shard, put.sequence) for put in puts}


@pytest.fixture
def acted(make_world: MakeWorld) -> Acted:
    return Acted(make_world(2))


# --- reset -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_reset_to_a_time_replays_what_arrived_since_and_nothing_older(acted: Acted) -> None:
    world = acted.world
    world.put(20)
    acted.run_through()
    later = world.put(20)
    acted.run_through()
    place = acted.first_arrival_of(later)

    before = acted.rows()
    said = acted.done("reset", "--to", place)
    assert "nothing was done; --execute does it" in said
    assert acted.rows() == before
    said = acted.done("reset", "--to", place, "--execute")
    assert f"{SHARD_0}: done" in said
    assert acted.done("reset", "--to", place).endswith("nothing to do\n")

    (saved,) = acted.cwd.glob("*.jsonl")
    assert saved.stat().st_mode & 0o777 == 0o600
    assert len(saved.read_text().splitlines()) == 1 + len(world.dynamo.scan(TableName=world.table)["Items"])
    assert acted.run_through() == names(later)


@pytest.mark.full
def test_reset_to_the_beginning_reads_parents_before_children(acted: Acted) -> None:
    world = acted.world
    world.put(20)
    acted.run_through()
    world.split(SHARD_0)
    acted.run_through(wanted=names(world.put(20)))

    acted.done("reset", "--to", "trim-horizon", "--execute")

    # As a bootstrap makes them: by the rules of the server, which lists what was open at the trim horizon.
    assert acted.checkpoints() == {SHARD_0: TRIM_HORIZON, SHARD_1: TRIM_HORIZON}
    acted.run_through(wanted=names(world.puts))
    history.children_after_parents(world.history.lives(worker="w1"), world.parents)


@pytest.mark.full
def test_a_reset_row_is_as_a_new_one_but_for_its_counter(acted: Acted) -> None:
    acted.world.put(10)
    acted.run_through()

    acted.done("reset", "--to", "trim-horizon", "--execute")

    lease = acted.world.leases()[SHARD_0]
    fresh = new_row(Lease(SHARD_0, TRIM_HORIZON, hash_range=lease.hash_range))
    row = acted.rows()[SHARD_0]
    assert {**row, "leaseCounter": {"N": "0"}} == fresh
    assert int(row["leaseCounter"]["N"]) > 0


def test_a_stream_that_was_recreated_is_read_after_a_reset(acted: Acted) -> None:
    world = acted.world
    world.put(20)
    acted.run_through()
    world.kinesis.delete_stream(StreamName=world.stream, EnforceConsumerDeletion=True)
    world.kinesis.get_waiter("stream_not_exists").wait(StreamName=world.stream)
    world.kinesis.create_stream(StreamName=world.stream, ShardCount=3)
    world.until_active()

    said = acted.done("reset", "--to", "trim-horizon", "--execute")

    assert "all rows are replaced, because the lease table belongs to another stream" in said
    assert set(acted.checkpoints().values()) == {TRIM_HORIZON}
    new = names(world.put(20))
    assert acted.run_through(wanted=new) == new


@pytest.mark.full
def test_reset_to_latest_skips_what_is_there_and_nothing_that_comes(acted: Acted) -> None:
    acted.run_through(initialPositionInStream="TRIM_HORIZON")
    skipped = acted.world.put(20)

    said = acted.done("reset", "--to", "latest", "--execute")

    assert "2 shards skip records that were not processed" in said
    assert set(acted.checkpoints().values()) == {LATEST}
    worker = acted.start()
    for shard in (SHARD_0, SHARD_1):
        acted.world.daemons[-1].wait_for_event("consumer_started", shard=shard)
    new = names(acted.world.put(10))
    acted.world.until(lambda: acted.delivered_by(worker) & new, what="new records")
    assert not acted.delivered_by(worker) & names(skipped)


@pytest.mark.full
def test_one_shard_begins_at_a_record(acted: Acted) -> None:
    puts = acted.world.put(40)
    acted.run_through()
    of_shard = [put for put in puts if put.shard == SHARD_1]
    wanted = of_shard[3:]
    other = acted.rows()[SHARD_0]["checkpoint"]

    acted.done("reset", "--shard", "1", "--to", wanted[0].sequence, "--execute")

    assert acted.checkpoints()[SHARD_1] == Position(str(of_shard[2].sequence))
    assert acted.rows()[SHARD_0]["checkpoint"] == other
    assert acted.run_through() == names(wanted)


@pytest.mark.full
def test_a_live_owner_is_not_pushed_aside_unless_that_is_asked_for(acted: Acted) -> None:
    world = acted.world
    world.put(20)
    worker = acted.start()
    world.until_delivered()
    world.until_caught_up()

    said = acted.refused("reset", "--to", "trim-horizon", "--execute")
    assert f"workers are alive: {worker} (2 leases); stop them, or let --stop-fleet" in said

    acted.done("reset", "--to", "trim-horizon", "--stop-fleet", "--execute")
    world.until(lambda: sum(len(life.delivered) for life in world.history.lives()) >= 40, what="delivered twice")
    world.until_caught_up()
    assert {lease.owner for lease in world.leases().values()} == {worker}
    assert world.daemons[-1].stop() == 0
    history.every_record_delivered(world.puts, world.history.lives())
    history.in_order_without_gaps(world.puts, world.history.lives())
    assert not [row for row in acted.rows().values() if "leaseOwner" in row]


@pytest.mark.full
@pytest.mark.node
def test_places_mean_the_same_on_a_kinesis_we_did_not_write(
    make_world: MakeWorld, kinesis_local: ServerProcess
) -> None:
    acted = Acted(make_world(2, kinesis=kinesis_local))
    world = acted.world
    world.put(20)
    acted.run_through()
    later = world.put(20)
    acted.run_through()

    acted.done("reset", "--to", acted.first_arrival_of(later), "--execute")
    # This server may know arrival times to the second only: some older records may come again, none is missing.
    assert acted.run_through(wanted=names(later)) >= names(later)

    acted.done("reset", "--to", "trim-horizon", "--execute")
    acted.run_through(wanted=names(world.puts))
    of_one = [put for put in world.puts if put.shard == SHARD_1]
    acted.done("reset", "--shard", "1", "--to", of_one[3].sequence, "--execute")
    assert acted.checkpoints()[SHARD_1] == Position(str(of_one[2].sequence))


# --- skip ------------------------------------------------------------------------------------------------------------


def test_one_record_is_left_out_while_its_worker_goes_on(acted: Acted) -> None:
    world = acted.world
    before = world.put(20)
    poison = world.kinesis.put_record(StreamName=world.stream, Data=b"poison", PartitionKey="k", ExplicitHashKey="0")
    after = world.put(20)
    daemon = world.daemon("w0", world.hostile("poison", lives=1_000_000), **SHORT_LEASE, **ASSIGNED)
    world.until(lambda: acted.rows().get(SHARD_0, {}).get("mldFailing"), what="a note of failures")
    out, number = acted.cwd / "poison.jsonl", poison["SequenceNumber"]

    said = acted.done("skip", SHARD_0, "--only", number, "--file", out)
    assert f"{number} is not delivered; what comes before and after is" in said
    assert not out.exists()
    acted.done("skip", SHARD_0, "--only", number, "--file", out, "--execute")

    assert [json.loads(line)["sequenceNumber"] for line in out.read_text().splitlines()] == [number]
    world.until_delivered([*before, *after])
    assert not [event for event in daemon.events if event.get("action") == "lease_lost"]
    assert f", past {number}" in acted.refused("skip", SHARD_0, "--only", number, "--file", out)
    lives = len(world.history.lives(SHARD_1))
    acted.done("restart-child", "1", "--why", "to see", "--execute")
    world.until(lambda: len(world.history.lives(SHARD_1)) > lives, what="a new child")
    assert "to see" in acted.rows()[SHARD_1]["mldRestart"]["S"]
    assert daemon.stop() == 0
    history.in_order_without_gaps([*before, *after], world.history.lives(SHARD_1))


@pytest.mark.full
def test_a_user_record_is_left_out_and_nothing_that_is_not_there(acted: Acted) -> None:
    world = acted.world
    users = [User("key", f"user-{number}".encode(), explicit_hash_key="0") for number in range(3)]
    put = world.kinesis.put_record(
        StreamName=world.stream, PartitionKey="x", ExplicitHashKey="0", Data=aggregate(users)
    )
    acted.run_through(initialPositionInStream="TRIM_HORIZON")
    acted.done("reset", "--to", "trim-horizon", "--execute")
    out, number = acted.cwd / "one.jsonl", put["SequenceNumber"]

    assert "has no record" in acted.refused("skip", "0", "--only", f"{number}/3", "--file", out, "--execute")
    assert not out.exists()
    acted.done("skip", "0", "--only", f"{number}/1", "--file", out, "--execute")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["subSequenceNumber"], base64.b64decode(line["data"])) for line in lines] == [(1, b"user-1")]
    assert out.stat().st_mode & 0o777 == 0o600
    acted.done("skip", "0", "--past", number, "--file", acted.cwd / "all.jsonl", "--execute")
    assert (acted.cwd / "all.jsonl").read_text().count("\n") == 3
    assert acted.rows()[SHARD_0]["mldLeftOut"] == {"SS": [number, f"{number}/1"]}
    assert "exists already" in acted.refused("skip", "0", "--only", f"{number}/2", "--file", out, "--execute")
    assert "there is no shard 7" in acted.refused("skip", "7", "--only", number, "--file", acted.cwd / "x", "--execute")
    nowhere = acted.refused("skip", "0", "--only", f"{number}/2", "--file", "/nowhere/x", "--execute")
    assert "no such file" in nowhere.lower()


# --- export and restore ----------------------------------------------------------------------------------------------


def test_what_was_exported_is_restored_and_read_again(acted: Acted) -> None:
    world = acted.world
    world.put(20)
    acted.run_through()
    before = acted.rows()
    file = acted.cwd / "saved.jsonl"
    acted.done("export", "--file", file)
    world.split(SHARD_0)
    later = world.put(20)
    acted.run_through(wanted=names(later))

    acted.done("restore", file, "--execute")

    assert {key: row["checkpoint"] for key, row in acted.rows().items()} == {
        key: row["checkpoint"] for key, row in before.items()
    }
    acted.run_through(wanted=names(later))


@pytest.mark.full
def test_restore_skips_nothing_unless_that_is_asked_for(acted: Acted) -> None:
    acted.world.put(20)
    acted.run_through()
    file = acted.cwd / "saved.jsonl"
    acted.done("export", "--file", file)
    acted.done("reset", "--to", "trim-horizon", "--execute")

    said = acted.refused("restore", file, "--execute")
    assert f"the file is ahead of the table for {SHARD_0}, {SHARD_1}" in said
    acted.done("restore", file, "--skip-forward", "--execute")
    assert TRIM_HORIZON not in acted.checkpoints().values()


@pytest.mark.full
def test_restore_makes_a_lost_table_again(acted: Acted) -> None:
    acted.world.put(20)
    acted.run_through()
    file = acted.cwd / "saved.jsonl"
    acted.done("export", "--file", file)
    before = acted.checkpoints()
    acted.world.dynamo.delete_table(TableName=acted.world.table)

    acted.done("restore", file, "--execute")

    assert acted.checkpoints() == before


@pytest.mark.full
def test_a_file_of_another_application_is_refused(acted: Acted) -> None:
    acted.world.put(4)
    acted.run_through()
    file = acted.cwd / "saved.jsonl"
    acted.done("export", "--file", file)
    file.write_text(file.read_text().replace(f'"application": "{acted.world.table}"', '"application": "other"'))

    assert "it is of application other" in acted.refused("restore", file, "--execute")
    file.write_text("no header\n")
    assert "is no file of `mld export`" in acted.refused("restore", file, "--execute")


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reset", "--shard", "17", "--to", "latest"), "the stream has no shard 17 (any more); it has shardId-0"),
        (("reset", "--to", str(10**55)), "a sequence number belongs to one shard: name it with --shard"),
        (("reset", "--shard", "0", "--to", str(10**55)), "is no sequence number of shard shardId-000000000000"),
    ],
)
def test_a_place_that_is_not_there_is_named(acted: Acted, arguments: tuple[str, ...], said: str) -> None:
    acted.world.put(4)
    acted.run_through()
    assert said in acted.refused(*arguments, "--execute")


@pytest.mark.full
def test_rows_of_another_stream_are_left_alone(acted: Acted) -> None:
    other = f"{acted.world.stream}-other"
    acted.world.kinesis.create_stream(StreamName=other, ShardCount=1)
    acted.world.put(4)
    acted.run_through()

    said = acted.refused("reset", "--to", "trim-horizon", "--execute", streamName=other)

    assert "the lease table belongs to another stream" in said
