"""Workers of one busy machine share its leases: real processes whose processors are always full, by a metadata service
that says so."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon

WITHIN_S = 120.0
"""Of a machine that runs other tests; by the rules it takes some ten seconds."""

AS_BY_DEFAULT = {
    "disableWorkerMetrics": "false",
    "failoverTimeMillis": 10_000,
    "leaseAssignmentIntervalMillis": 20_000,
    "workerMetricsReporterFreqInMillis": 30_000,
}


def _stats(at: int) -> dict[str, object]:
    return {"cpu_usage": {"total_usage": at}, "system_cpu_usage": at, "online_cpus": 1}


LIMIT = {"DockerId": "this", "Limits": {"CPU": 1}}
DOCUMENTS = {
    "/v4/this": LIMIT,
    "/v4/this/task": {"Limits": {"CPU": 1}, "Containers": [LIMIT]},
    "/v4/this/stats": {"cpu_stats": _stats(2_000), "precpu_stats": _stats(1_000)},
}
"""All the processor time that there was between two readings was used."""


class Busy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(DOCUMENTS[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def busy() -> Iterator[dict[str, str]]:
    """The environment of a container whose processors are full."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield {**ENVIRONMENT, "ECS_CONTAINER_METADATA_URI_V4": f"http://127.0.0.1:{server.server_port}/v4/this"}
    server.shutdown()
    server.server_close()
    thread.join()


def shares(world: World) -> list[int]:
    leases = world.leases().values()
    if any(lease.checkpoint_owner or lease.owner is None for lease in leases):
        return []
    return sorted(Counter(lease.owner for lease in leases).values(), reverse=True)


def cpu_of(world: World) -> set[str]:
    """The newest figures of all reports."""
    rows = world.dynamo.scan(TableName=world.table)["Items"]
    return {row["sts"]["M"]["C"]["L"][-1]["N"] for row in rows if row.get("sts", {}).get("M")}


def start(world: World, busy: dict[str, str], worker: str, *arguments: str) -> Daemon:
    return world.daemon(worker, process={"arguments": list(arguments), "environment": busy}, **AS_BY_DEFAULT)


def test_two_workers_of_one_file_share_within_seconds(make_world: MakeWorld, busy: dict[str, str]) -> None:
    world = make_world(shards=4)
    daemon = start(world, busy, "w1", "--processes", "2")
    world.until(lambda: shares(world) == [2, 2], WITHIN_S, "two leases of each")
    assert cpu_of(world) == {"100.0"}
    assert daemon.stop() == 0


@pytest.mark.full
def test_a_daemon_that_comes_later_gets_its_part(make_world: MakeWorld, busy: dict[str, str]) -> None:
    world = make_world(shards=4)
    first = start(world, busy, "w1")
    world.until(lambda: shares(world) == [4], WITHIN_S, "all leases of the first")
    second = start(world, busy, "w2")
    world.until(lambda: shares(world) == [2, 2], WITHIN_S, "two leases of each")
    assert first.stop() == second.stop() == 0
