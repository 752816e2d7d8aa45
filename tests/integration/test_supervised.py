"""The daemon under a service manager that speaks the notify protocol: start, status, reload, stop, watchdog."""

from __future__ import annotations

import os
import pty
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon, until
from tests.support.supervisor import Supervisor

BLOCKS_ITS_LOOP = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
from mld.cli import main
main()
"""
IN_A_SESSION = """
import os, sys
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
if sys.argv[1]:
    os.open(sys.argv[1], os.O_RDWR)
os.execv(sys.executable, [sys.executable, "-m", "mld", "run", *sys.argv[2:]])
"""


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor(watchdog_s=60) as running:
        yield running


def supervised(world: World, supervisor: Supervisor, child: str = "", **keys: object) -> Daemon:
    environment = {**ENVIRONMENT, **supervisor.environment}
    daemon = world.daemon(child=child, process={"environment": environment, "arguments": []}, **keys)
    supervisor.watch(daemon.process)
    return daemon


def rewrite(daemon: Daemon, **keys: object) -> None:
    """Lines added to the properties file; the last line of a key counts."""
    lines = "".join(f"{name.replace('__', '.')} = {value}\n" for name, value in keys.items())
    daemon.file.write_text(daemon.file.read_text() + lines)


def test_a_supervised_life_from_ready_to_a_stop_that_takes_longer_than_the_manager_grants(
    make_world: MakeWorld, supervisor: Supervisor
) -> None:
    world = make_world(shards=2)
    daemon = supervised(world, supervisor, world.recorder(on_shutdown="hang"), shutdownGraceMillis=4000)
    supervisor.wait_until_ready()
    assert supervisor.messages("STATUS")[0] == "starting"
    world.put(40)
    world.until_delivered()
    supervisor.wait_for(lambda it: "2 shards, 0 ms behind" in it.messages("STATUS"), "the status")
    assert supervisor.messages("WATCHDOG")
    assert not any(b"NOTIFY_SOCKET" in Path(f"/proc/{pid}/environ").read_bytes() for pid in children_of(daemon))
    code, took_s = supervisor.stop(within_s=2)
    assert code == 128 + signal.SIGTERM
    assert took_s > 4
    assert "STOPPING" in supervisor.names()
    assert daemon.survivors() == []


def children_of(daemon: Daemon) -> list[int]:
    found = [pid for pid in daemon.survivors() if pid != daemon.process.pid]
    assert found
    return found


def test_a_reload_takes_what_may_change_names_what_may_not_and_refuses_a_broken_file(
    make_world: MakeWorld, supervisor: Supervisor
) -> None:
    world = make_world()
    daemon = supervised(world, supervisor, world.recorder(pause_s=0.4), logWarningForTaskAfterMillis=60_000)
    supervisor.wait_until_ready()
    rewrite(daemon, maxRecords="many", mld__logLevel="debug")
    supervisor.reload()
    refused = daemon.wait_for_event("reload_failed")
    assert "nothing changes" in refused["message"] and "maxRecords" in refused["message"]
    supervisor.wait_for(lambda it: "1 config-refused" in it.messages("STATUS")[-1], "the fault to stay in sight")
    rewrite(daemon, maxRecords=100, logWarningForTaskAfterMillis=100)
    supervisor.reload()
    reloaded = daemon.wait_for_event("reloaded")
    assert reloaded["changed"] == ["logWarningForTaskAfterMillis", "mld.logLevel"]
    assert reloaded["needs_restart"] == ["maxRecords"]
    supervisor.wait_for(lambda it: "1 restart-needed" in it.messages("STATUS")[-1], "what waits")
    world.put(10)
    daemon.wait_for_event("slow_task")
    world.until_delivered()
    assert [event for event in daemon.events if event["level"] == "DEBUG"]
    assert supervisor.stop(within_s=30)[0] == 0
    world.check()


@pytest.mark.full
def test_a_daemon_whose_loop_hangs_is_ended_by_the_watchdog_and_shows_where_it_hung(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    with Supervisor(watchdog_s=8) as supervisor:
        process = {
            "command": [sys.executable, "-c", BLOCKS_ITS_LOOP, "run"],
            "environment": {**ENVIRONMENT, **supervisor.environment},
        }
        daemon = world.daemon(process=process)
        supervisor.watch(daemon.process)
        supervisor.wait_for(lambda it: len(it.messages("WATCHDOG")) > 2, "signs of life")
        assert not supervisor.watchdog_fired
        daemon.send(signal.SIGUSR1)
        supervisor.wait_for(lambda it: it.watchdog_fired, "the watchdog")
        assert daemon.wait() == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in daemon.log()
        assert 'File "<string>", line 3' in daemon.log()
    assert until(lambda: daemon.survivors() == [], what="the children to end with it")


@pytest.mark.parametrize(("has_terminal", "code"), [(True, 0), (False, None)])
def test_a_terminal_that_goes_away_stops_a_daemon_and_without_one_sighup_reloads(
    make_world: MakeWorld, has_terminal: bool, code: int | None
) -> None:
    world = make_world()
    master, slave = pty.openpty()
    terminal = os.ttyname(slave) if has_terminal else ""
    daemon = world.daemon(process={"command": [sys.executable, "-c", IN_A_SESSION, terminal]})
    daemon.wait_for_event("consumer_started")
    session = pid_of(daemon)
    os.close(slave)
    if code is None:
        os.kill(session, signal.SIGHUP)
        assert daemon.wait_for_event("reloaded")["changed"] == []
        os.kill(session, signal.SIGTERM)
    os.close(master)
    assert daemon.wait() == 0
    assert daemon.with_action("worker_stopped", graceful=True)


def pid_of(daemon: Daemon) -> int:
    """The daemon itself, whose parent is the process that made its session."""
    (listed,) = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    return int(listed)
