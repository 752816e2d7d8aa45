"""The commands that ask the daemon of this machine, typed as an operator and a supervisor type them."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.acceptance.commands import MLD, ROOT, mld
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon, until
from tests.support.patience import PATIENCE_S

PROBE_COST_MAX = 4.0
"""CPU of a probe, as a multiple of what the command line alone costs: `mld --version`."""


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


def cost_of(*words: object, environment: Mapping[str, str]) -> float:
    """CPU seconds of one command that ends well."""

    def cpu_s() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_s()
    assert mld(*words, environment=environment).returncode == 0
    return cpu_s() - before


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
    with daemon.file.open("a") as file:
        file.write("mld.deadLetter = ${ONLY_THE_SERVICE_HAS_IT}\n")
    probes = [cost_of("status", daemon.file, "--live", environment=environment) for _ in range(3)]
    bare = [cost_of("--version", environment=environment) for _ in range(3)]
    assert min(probes) < PROBE_COST_MAX * min(bare)
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
    both = mld("status", first.file, environment=environment)
    assert both.returncode == 1
    assert "choose one of 2 daemons by --pid or --worker" in both.stderr
    assert mld("status", first.file, "--live", environment=environment).returncode == 0, "both are asked"
    first.send(signal.SIGSTOP)
    assert mld("status", first.file, "--live", "--timeout", "1", environment=environment).returncode == 1
    hanging = mld("status", first.file, "--pid", first.process.pid, "--live", "--timeout", "1", environment=environment)
    assert hanging.returncode == 1
    assert f"the daemon with pid {first.process.pid} does not answer within 1 s" in hanging.stderr
    assert mld("status", first.file, "--worker", "w2", "--live", environment=environment).returncode == 0
    first.send(signal.SIGCONT)


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


# --- tap --------------------------------------------------------------------------------------------------------------


def test_a_tap_shows_both_directions_until_the_lease_ends(
    make_world: MakeWorld, environment: dict[str, str], tmp_path: Path
) -> None:
    world = make_world()
    daemon = start(world, environment)
    elsewhere = mld("tap", daemon.file, "shardId-000000000007", environment=environment)
    assert elsewhere.returncode == 1
    assert "no lease of shard 'shardId-000000000007'; it has shardId-000000000000" in elsewhere.stderr
    forgotten = mld("tap", daemon.file, environment=environment)
    assert forgotten.returncode == 2
    assert "name a shard after the file" in forgotten.stderr
    text = tmp_path / "transcript"
    command = [str(MLD), "tap", str(daemon.file), "0"]
    with text.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=ROOT) as tapping:
        try:
            until(lambda: "shardId-000000000000: " in text.read_text(), what="the tap")
            world.put(10, 200)
            world.until_delivered()
            until(lambda: '<- {"action": "status"' in text.read_text(), what="the answer")
            assert daemon.stop() == 0
            assert tapping.wait(PATIENCE_S) == 0
        finally:
            tapping.kill()
    lines = text.read_text().splitlines()
    assert re.fullmatch(r"-- shardId-000000000000: \w+, pid \d+.*", lines[0])
    batch, *_ = [line for line in lines if "processRecords" in line]
    assert re.match(r'[\d:.]{12} -> \{"action":"processRecords","records":\[\{"data":"[\w+/=]{48}… \d+ more"', batch)
    assert re.search(r"\([\d,]+ bytes(, \d+ records)?\)$", batch)
    assert any('-> {"action":"shutdownRequested","checkpoint":' in line for line in lines)
    assert re.fullmatch(r"-- [\d:.]{12} child ended: pid \d+ exited with status 0", lines[-2])
    assert re.fullmatch(r"-- [\d:.]{12} this worker gives the lease back", lines[-1])
