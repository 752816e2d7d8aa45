"""`/livez` of real daemons: it fails when the loop is blocked, and not for what a restart would not mend."""

from __future__ import annotations

import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.integration.world import MakeWorld, World
from tests.support.daemon import CHILDREN, ROOT, Daemon, until
from tests.support.servers import EmbeddedAws

pytestmark = pytest.mark.full

PROBE_S = 1.0
"""What a supervisor waits for an answer by default, and how long it waits between two probes here."""
FAILS_WITHIN_S = 30.0
STAYS_S = 45.0
"""Well above three periods of the loop and of renewals of a lease of ten seconds."""
WITH_PROBES = {"mld__http": "127.0.0.1:0"}


def blockable(world: World) -> Daemon:
    command = [sys.executable, str(CHILDREN / "blockable_daemon.py"), "run"]
    environment = {"AWS_ACCESS_KEY_ID": "1", "AWS_SECRET_ACCESS_KEY": "1", "PYTHONPATH": str(ROOT)}
    return world.daemon(process={"command": command, "environment": environment}, **WITH_PROBES)


def address_of(daemon: Daemon) -> str:
    return f"http://{daemon.wait_for_event('http_serving')['address']}"


def probe(address: str, path: str = "/livez", patience_s: float = PROBE_S) -> int | None:
    """The status of the answer; None without one."""
    try:
        with urllib.request.urlopen(address + path, timeout=patience_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code
    except (TimeoutError, OSError):
        return None


def probes(address: str, seconds: float, patience_s: float = PROBE_S) -> Iterator[int | None]:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        asked_s = time.monotonic()
        yield probe(address, patience_s=patience_s)
        time.sleep(max(0.0, asked_s + PROBE_S - time.monotonic()))


def test_a_loop_that_is_blocked_by_code_fails_its_probe_at_once_and_for_good(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(10)
    daemon = blockable(world)
    address = address_of(daemon)
    world.until_delivered()
    assert probe(address) == 200
    daemon.send(signal.SIGUSR1)
    until(lambda: probe(address) is None, FAILS_WITHIN_S)
    assert set(probes(address, 10.0)) == {None}


def test_a_loop_that_hangs_in_turns_says_so_whenever_it_can(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    world.put(10)
    daemon = blockable(world)
    address = address_of(daemon)
    world.until_delivered()
    daemon.send(signal.SIGUSR2)
    until(lambda: probe(address, patience_s=10.0) == 503, FAILS_WITHIN_S)
    patient = [probe(address, patience_s=10.0) for _ in range(5)]
    assert set(patient) == {503}


def test_an_aws_that_is_gone_a_lag_and_no_leases_are_not_the_daemons_fault(make_world: MakeWorld) -> None:
    with EmbeddedAws() as aws:
        kept = make_world(shards=1, kinesis=aws)
        keys = {**WITH_PROBES, "dynamoDBEndpoint": aws.endpoint}
        daemon = kept.daemon("w1", kept.hostile("no_answer"), **keys)
        idle = kept.daemon("w2", **keys)
        addresses = [address_of(daemon), address_of(idle)]
        kept.put(500)
        until(lambda: all(probe(address, "/readyz") == 200 for address in addresses))
        for address in addresses:
            assert set(probes(address, 5.0)) == {200}
        aws.process.kill()
        for number in range(int(STAYS_S)):
            assert [probe(address, patience_s=5.0) for address in addresses] == [200, 200], f"after {number} s"
            time.sleep(PROBE_S)
