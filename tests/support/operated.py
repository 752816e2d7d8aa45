"""A fleet with something to see in it, for tests of what operators look at and do.

Two real daemons, `w1` and `w2`, each with a status page, share four shards. One shard can be split, one has a record
processor that dies of every batch, one row is of a shard that the stream does not have (so it is parked), and `w2` can
be killed. Who owns what is the same in every run::

    w1, leads    ...0002 (its processor fails)   ...0003    ...0009 (parked)
    w2           ...0000 (can be split)          ...0001

The rows are written as a fleet of the same two workers leaves them, so each takes up its own, and neither has room for
more than the three that it ends with. After the split w2 has 0001, 0004 and 0005; they stay with it when it is dead.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from mld.core.positions import TRIM_HORIZON
from mld.core.streams import HashRange
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from tests.integration.world import ASSIGNED, World
from tests.support.daemon import Daemon
from tests.support.patience import PATIENCE_S

SHARDS = 4
SPLIT, FAILING, PARKED = "shardId-000000000000", "shardId-000000000002", "shardId-000000000009"
GOOD = "shardId-000000000003"
CHILDREN = ("shardId-000000000004", "shardId-000000000005")
OWNERS = {SPLIT: "w2", "shardId-000000000001": "w2", FAILING: "w1", GOOD: "w1", PARKED: "w1"}
LEASES_MAX = 3
KEYS: dict[str, object] = {
    **ASSIGNED,
    "mld.http": "127.0.0.1:0",
    "maxLeasesForWorker": LEASES_MAX,
    "cleanupLeasesUponShardCompletion": "false",  # the row of a shard that was split stays to be seen
    "mld.leaseAssignmentStrategy": "count",
    # Long enough that the processor has failed once or twice when it is looked at, and not hundreds of times.
    "mld.childRestartBackoffMillis": 2000,
    "workerMetricsReporterFreqInMillis": 5000,  # a worker that reports late, on a loaded machine, is not taken for dead
}


class OperatedFleet:
    """Made from a fresh `World` with `SHARDS` shards; `keys` are more keys for both daemons, dots written `__`."""

    def __init__(self, world: World, **keys: object) -> None:
        self.world = world
        self.keys = {**KEYS, **{name.replace("__", "."): value for name, value in keys.items()}}
        self.daemons: dict[str, Daemon] = {}
        self.bases: dict[str, str] = {}
        """Where each daemon serves, as ``http://127.0.0.1:1234``."""
        self._write_rows()

    def start(self) -> OperatedFleet:
        """Both workers, until each holds what is its own; w1 leads."""
        child = self.world.hostile("exit_in_batch", shard=FAILING, lives=1_000_000)
        for worker in ("w1", "w2"):
            daemon = self.daemons[worker] = self.world.daemon(worker, child, **self.keys)
            self.bases[worker] = f"http://{daemon.wait_for_event('http_serving')['address']}"
            for shard, owner in OWNERS.items():
                if owner == worker:
                    daemon.wait_for_event("lease_held", shard=shard)
        return self

    @property
    def file(self) -> Path:
        """The properties file of w1, for commands."""
        return self.daemons["w1"].file

    # --- what happens to it -------------------------------------------------------------------------------------------

    def put(self, count: int = 40) -> None:
        """Records for all shards; until all but those of the failing shard, whose processor dies of them, are done."""
        new = self.world.put(count)
        last = {put.shard: put.sequence for put in new if put.shard != FAILING}

        def is_done() -> bool:
            rows = self.world.leases()
            return all(
                shard in rows and (rows[shard].is_complete or rows[shard].checkpoint.number == sequence)
                for shard, sequence in last.items()
            )

        self.world.until(is_done, what="checkpoints at the last records")

    def split(self) -> None:
        """Split the first shard and wait until both children are processed by w2."""
        self.world.split(SPLIT)
        for shard in CHILDREN:
            self.daemons["w2"].wait_for_event("lease_held", shard=shard)

    def kill(self, worker: str = "w2") -> None:
        """As kill -9: it writes nothing any more, and its leases stay with it."""
        self.daemons[worker].kill()

    def until_in_trouble(self) -> None:
        """Until the rows say that one shard fails and one is parked, and lag is known of all others."""
        self.world.until(self._is_in_trouble, what="rows that tell of a failing and a parked shard")

    def until_dead(self, worker: str = "w2") -> None:
        """Until the others have what they have room for, the row of the ended shard, a reader of the table takes the
        killed worker for dead, and nothing that it told last for fresh.
        """

        def is_dead() -> bool:
            status = self.status()
            told = [one["behindSeconds"] for one in status["shards"] if one["owner"] == worker]
            dead = [one for one in status["workers"] if one["worker"] == worker and one["isAlive"] is False]
            return (
                bool(dead)
                and self.world.leases()[SPLIT].owner != worker
                and not any(behind_s is not None for behind_s in told)
            )

        self.world.until(is_dead, what=f"{worker} known to be dead")

    def _is_in_trouble(self) -> bool:
        shards = {one["shard"]: one for one in self.status()["shards"]}
        states = {name: one["state"] for name, one in shards.items()}
        is_known = all(
            one["behindSeconds"] is not None for name, one in shards.items() if states[name] not in ("ended", "parked")
        )
        return states.get(FAILING) == "failing" and states.get(PARKED) == "parked" and is_known

    # --- looking ------------------------------------------------------------------------------------------------------

    def get(self, path: str, worker: str = "w1", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by lower-case name, and body of a page of a daemon."""
        return get(f"{self.bases[worker]}{path}", **headers)

    def status(self, worker: str = "w1") -> Any:
        """The daemon's `/status.json`."""
        code, _, body = self.get("/status.json", worker)
        assert code == 200, body
        return json.loads(body)

    # --- before -------------------------------------------------------------------------------------------------------

    def _write_rows(self) -> None:
        world = self.world
        world.dynamo.create_table(
            TableName=world.table,
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        ranges = {
            shard["ShardId"]: HashRange(
                int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"])
            )
            for shard in world.shards()
        }
        for shard, owner in OWNERS.items():
            lease = Lease(shard, TRIM_HORIZON, owner=owner, hash_range=ranges.get(shard, ranges[GOOD]))
            world.dynamo.put_item(TableName=world.table, Item=new_row(lease))


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body of a page."""
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, _lower(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _lower(error.headers), error.read()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
