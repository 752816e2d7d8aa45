"""The commands that ask the daemon of this machine, typed as an operator and a supervisor type them."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.commands import mld
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon

PROBE_CPU_S = 0.3


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Daemons and commands of one session, apart from all others on this machine."""
    session = tmp_path / "session"
    session.mkdir(0o700)
    return {**os.environ, **ENVIRONMENT, "XDG_RUNTIME_DIR": str(session)}


def start(world: World, environment: Mapping[str, str], worker: str = "w1", **keys: object) -> Daemon:
    daemon = world.daemon(worker, process={"environment": dict(environment)}, **keys)
    daemon.wait_for_event("consumer_started")
    return daemon


def test_status_shows_the_shards_of_the_daemon_that_runs_here(
    make_world: MakeWorld, environment: dict[str, str]
) -> None:
    world = make_world(shards=2)
    daemon = start(world, environment)
    world.put(20)
    world.until_delivered()
    shown = mld("status", daemon.file, environment=environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "worker w1" in shown.stdout and f"pid {daemon.process.pid}" in shown.stdout
    assert len(re.findall(r"^shardId-\d+ ", shown.stdout, re.MULTILINE)) == 2
    assert "2 shards; furthest behind: 0 ms" in shown.stdout
    value = json.loads(mld("status", daemon.file, "-o", "json", environment=environment).stdout)
    assert (value["pid"], value["isReady"], value["isAlive"]) == (daemon.process.pid, True, True)
    assert sum(shard["records"] for shard in value["shards"]) == 20
    for probe in ("--live", "--ready"):
        said = mld("status", daemon.file, probe, environment=environment)
        assert (said.returncode, said.stdout) == (0, "ok\n")
    assert daemon.stop() == 0
    gone = mld("status", daemon.file, "--live", environment=environment)
    assert gone.returncode == 1
    assert f"no daemon of application {world.table} answers on this machine" in gone.stderr


@pytest.mark.full
def test_a_daemon_that_hangs_fails_its_probe_and_two_are_told_apart(
    make_world: MakeWorld, environment: dict[str, str]
) -> None:
    world = make_world(shards=2)
    first = start(world, environment, "w1")
    second = world.daemon("w2", process={"environment": environment})
    second.wait_for_event("daemon_starting")
    world.until(lambda: mld("status", "--worker", "w2", "--ready", environment=environment).returncode == 0, 60, "w2")
    both = mld("status", first.file, "--live", environment=environment)
    assert both.returncode == 1
    assert "there are 2 daemons, choose one by --pid or --worker" in both.stderr
    first.send(signal.SIGSTOP)
    hanging = mld("status", first.file, "--pid", first.process.pid, "--live", "--timeout", "1", environment=environment)
    assert hanging.returncode == 1
    assert f"the daemon with pid {first.process.pid} does not answer within 1 s" in hanging.stderr
    assert mld("status", first.file, "--worker", "w2", "--live", environment=environment).returncode == 0
    first.send(signal.SIGCONT)


def test_a_probe_costs_little(make_world: MakeWorld, environment: dict[str, str]) -> None:
    world = make_world()
    daemon = start(world, environment)

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    costs = []
    for _ in range(5):
        before = cpu_s()
        assert mld("status", daemon.file, "--live", environment=environment).returncode == 0
        costs.append(cpu_s() - before)
    assert min(costs) < PROBE_CPU_S


def test_status_needs_no_more_of_the_file_than_the_name_of_the_application(
    make_world: MakeWorld, environment: dict[str, str]
) -> None:
    world = make_world()
    daemon = start(world, environment)
    with daemon.file.open("a") as file:
        file.write("mld.deadLetter = ${ONLY_THE_SERVICE_HAS_IT}\n")
    assert mld("status", daemon.file, "--live", environment=environment).returncode == 0


def test_off_is_off_and_a_bad_file_is_a_configuration_error(
    make_world: MakeWorld, environment: dict[str, str], tmp_path: Path
) -> None:
    world = make_world()
    daemon = start(world, environment, mld__controlSocket="off")
    off = mld("status", daemon.file, environment=environment)
    assert (off.returncode, off.stderr) == (1, "mld: mld.controlSocket is off, so the daemon cannot be asked\n")
    assert list((tmp_path / "session").iterdir()) == []
    missing = mld("status", tmp_path / "none.properties", environment=environment)
    assert missing.returncode == 2
    assert "cannot be read" in missing.stderr
