"""Daemon, children and a host that is a client of a Spark Connect server: `make test-connect`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.test_spark import SESSION_S, processes, put_malformed, start, texts, wanted
from tests.integration.world import MakeWorld
from tests.support.spark_bed import rows
from tests.support.spark_servers import ConnectServer, spark_home

SERVER = os.environ.get("MLD_CONNECT_SERVER", "")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SERVER, reason="make test-connect"),
]


def test_every_record_once_through_a_server_that_is_restarted(
    make_world: MakeWorld,
    tmp_path: Path,
) -> None:
    logs = tmp_path / "server"
    logs.mkdir()
    world = make_world(shards=2)
    world.put(200)
    put_malformed(world)
    server = ConnectServer(logs, spark_home(SERVER), sys.executable)
    try:
        keys = {
            "mld.spark.remote": f"{server.url}/;user_id=hush",
            "mld.childFailurePolicy": "restart",
            "mld.childRestartsMax": 50,
        }
        daemon = start(world, **keys)
        world.until(lambda: texts(world) == wanted(world), SESSION_S, "the first records in the sink")
        world.until(lambda: rows(world.directory / "dead"), SESSION_S, "the malformed record in the dead letter")
        assert processes(daemon, "java") == []

        server.kill()
        world.put(200)
        world.until(lambda: "the Spark session is gone" in daemon.log(), SESSION_S, "the server is missed")
        server = ConnectServer(logs, spark_home(SERVER), sys.executable, server.said)
        world.until(lambda: texts(world) == wanted(world), SESSION_S, "the records behind the restart")
        assert daemon.stop(timeout_s=200) == 0
        world.until_caught_up(1)
        assert len(rows(world.directory / "dead")) == 1
        assert "hush" not in daemon.log()
    finally:
        server.kill()
