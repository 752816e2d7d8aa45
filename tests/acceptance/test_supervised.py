"""The unit that `mld systemd-unit` prints, run as it says by a supervisor that speaks the notify protocol."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.acceptance.commands import MLD
from tests.integration.world import ENVIRONMENT, MakeWorld
from tests.support.daemon import Daemon
from tests.support.supervisor import Supervisor
from tests.unit.test_service_unit import settings


def test_the_printed_unit_starts_reloads_and_stops_the_daemon(make_world: MakeWorld, tmp_path: Path) -> None:
    world = make_world(shards=2)
    (tmp_path / "secret").write_text("T0KEN\n")
    hook = "http://127.0.0.1:9/${file:${CREDENTIALS_DIRECTORY}/secret}"
    keys = world.keys("w1", world.recorder(), {"mld.notify": hook, "shutdownGraceMillis": 4000})
    daemon = Daemon(tmp_path, keys)
    printed = subprocess.run(
        [MLD, "systemd-unit", daemon.file], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    said = settings(printed.stdout)
    assert said["LoadCredential"] == ["secret:/etc/mld/secret"]
    (start,), (reload,) = said["ExecStart"], said["ExecReload"]
    with Supervisor(watchdog_s=float(said["WatchdogSec"][0])) as supervisor:
        daemon.command = [*shlex.split(start), "--log-format", "json"]
        (tmp_path / "run").mkdir(mode=0o700)
        daemon.environment = {
            "PATH": os.environ["PATH"],
            **ENVIRONMENT,
            **supervisor.environment,
            "CREDENTIALS_DIRECTORY": str(tmp_path),
            "RUNTIME_DIRECTORY": str(tmp_path / "run"),
        }
        world.daemons.append(daemon)
        supervisor.watch(daemon.start().process)
        supervisor.wait_until_ready()
        world.put(20)
        world.until_delivered()
        live = [MLD, "status", "--live", "--pid", str(daemon.process.pid)]
        subprocess.run(live, check=True, capture_output=True, env=daemon.environment)
        reloading = len(supervisor.messages("RELOADING"))
        subprocess.run(shlex.split(reload.replace("$MAINPID", str(daemon.process.pid))), check=True)
        supervisor.wait_for(lambda it: len(it.messages("RELOADING")) > reloading, "RELOADING=1")
        daemon.wait_for_event("reloaded", changed=[], needs_restart=[])
        code, _ = supervisor.stop(within_s=float(said["TimeoutStopSec"][0]))
        assert code == 0
    world.check()
