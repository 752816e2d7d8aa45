"""Several workers of one properties file: `mld run --processes`, as its users and a service manager see it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.integration import history
from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import Daemon, until
from tests.support.servers import free_port
from tests.support.supervisor import Supervisor

QUICKLY = {"disableWorkerMetrics": "true", "leaseAssignmentIntervalMillis": 1000}


def unit(world: World, count: int = 2, *, arguments: tuple[str, ...] = (), **keys: object) -> Daemon:
    process = {"arguments": ["--processes", str(count), *arguments], "environment": ENVIRONMENT}
    return world.daemon(process=process, **{**QUICKLY, **keys})


def pids(daemon: Daemon) -> dict[str, int]:
    """The processes of the workers, by worker."""
    listed = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
    found = {}
    for pid in map(int, listed):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"MLD_UNIT_WORKER="):
                found[pair.partition(b"=")[2].decode()] = pid
    return found


def owners(world: World) -> dict[str, str | None]:
    return {key: lease.actual_owner for key, lease in world.leases().items()}


def until_shared(world: World, *workers: str) -> None:
    """Each worker has leases, and none is on its way."""

    def is_so() -> bool:
        leases = world.leases().values()
        return {lease.owner for lease in leases} == set(workers) and not any(lease.checkpoint_owner for lease in leases)

    world.until(is_so, what="leases of each worker")


def records_are_whole(world: World) -> None:
    """All promises but those of the writes: the wire tap takes all workers of a unit for one."""
    history.check_all(world.puts, world.history.lives(), [], world.parents)


def fetch(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="3.x"),
        pytest.param(
            {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}, id="2.x", marks=pytest.mark.full
        ),
    ],
)
def test_siblings_hear_of_a_killed_worker_and_have_its_shards(make_world: MakeWorld, keys: dict[str, object]) -> None:
    world = make_world(shards=4)
    daemon = unit(world, **keys)
    world.put(40)
    world.until_delivered()
    until_shared(world, "w1-1", "w1-2")
    if "clientVersionConfig" in keys:  # the victim of a steal finds out at its next renewal
        daemon.wait_for_event("lease_lost", of_worker="w1-1")
    held = [key for key, owner in owners(world).items() if owner == "w1-2"]
    os.kill(pids(daemon)["w1-2"], signal.SIGKILL)
    daemon.wait_for_event("worker_restarts", worker="w1-2", exit_code=-signal.SIGKILL)
    daemon.wait_for_event("sibling_ended", worker="w1-2", of_worker="w1-1")
    world.until(lambda: all(owners(world)[key] == "w1-1" for key in held), what="its leases with the sibling")
    world.put(40)
    world.until_delivered()
    assert daemon.stop() == 0
    records_are_whole(world)


def test_what_is_wrong_with_the_file_is_said_once_and_ends_the_unit(make_world: MakeWorld) -> None:
    daemon = unit(make_world(), executableName="/no/such/program")
    assert daemon.wait() == 2
    assert daemon.log().count("no executable file") == 1


@pytest.mark.full
def test_a_dead_worker_is_started_again_once_the_file_is_right_and_gets_its_share(make_world: MakeWorld) -> None:
    world = make_world(shards=4)
    daemon = unit(world)
    until_shared(world, "w1-1", "w1-2")
    daemon.wait_for_event("unit_ready")
    right = daemon.file.read_text()
    daemon.file.write_text(right + "failoverTimeMillis = soon\n")
    before = pids(daemon)
    os.kill(before["w1-1"], signal.SIGKILL)
    told = daemon.wait_for_event("worker_restarts", worker="w1-1", exit_code=2)
    assert told["level"] == "ERROR"
    assert "properties file has an error" in told["message"]
    world.until(lambda: set(owners(world).values()) == {"w1-2"}, what="all with the other")
    world.put(40)
    world.until_delivered()
    daemon.file.write_text(right)
    until_shared(world, "w1-1", "w1-2")
    assert pids(daemon)["w1-2"] == before["w1-2"]
    assert daemon.stop() == 0
    assert daemon.survivors() == []
    assert set(owners(world).values()) == {None}, "no worker has left its leases to one that leaves, too"
    records_are_whole(world)


def test_a_unit_that_never_came_up_ends_as_a_daemon_would(make_world: MakeWorld) -> None:
    daemon = unit(make_world(), streamName="no-such-stream", schedulerInitializationBackoffTimeMillis=1)
    assert daemon.wait() == 1


def test_workers_stop_when_their_supervisor_is_killed(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    with tempfile.TemporaryDirectory(prefix="z") as place:  # the sockets stay
        process = {"arguments": ["--processes", "2"], "environment": {**ENVIRONMENT, "TMPDIR": place}}
        daemon = world.daemon(process=process, **QUICKLY)
        until_shared(world, "w1-1", "w1-2")
        daemon.kill()
        for worker in ("w1-1", "w1-2"):
            daemon.wait_for_event("supervisor_gone", of_worker=worker)
            daemon.wait_for_event("worker_stopped", of_worker=worker, graceful=True)
        until(lambda: not daemon.survivors(), what="the end of all processes")


def test_a_unit_is_one_service(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    with Supervisor(watchdog_s=60) as supervisor:
        process = {"arguments": ["--processes", "2"], "environment": {**ENVIRONMENT, **supervisor.environment}}
        daemon = world.daemon(process=process, **QUICKLY)
        supervisor.watch(daemon.process)
        supervisor.wait_until_ready()
        daemon.wait_for_event("unit_ready")
        supervisor.wait_for(lambda it: any(s.startswith("2 of 2 workers run") for s in it.messages("STATUS")), "it")
        assert supervisor.messages("WATCHDOG")
        for pid in pids(daemon).values():
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            (notify,) = (Path(pair.partition("=")[2]) for pair in environment if pair.startswith("NOTIFY_SOCKET="))
            assert notify.stat().st_mode & 0o777 == 0o600, "no other user tells the supervisor anything"
        daemon.file.write_text(daemon.file.read_text() + "logWarningForTaskAfterMillis = 777\n")
        supervisor.reload()
        for worker in ("w1-1", "w1-2"):
            daemon.wait_for_event("reloaded", of_worker=worker)
        assert supervisor.stop(within_s=30)[0] == 0
    assert daemon.survivors() == []


@pytest.mark.full
def test_a_worker_that_hangs_is_ended_by_its_supervisor(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    with Supervisor(watchdog_s=8) as supervisor:
        process = {"arguments": ["--processes", "2"], "environment": {**ENVIRONMENT, **supervisor.environment}}
        daemon = world.daemon(process=process, **QUICKLY)
        supervisor.watch(daemon.process)
        until_shared(world, "w1-1", "w1-2")
        os.kill(pids(daemon)["w1-2"], signal.SIGSTOP)
        daemon.wait_for_event("worker_hangs", worker="w1-2")
        daemon.wait_for_event("worker_restarts", worker="w1-2")
        assert not supervisor.watchdog_fired
        assert supervisor.stop(within_s=60)[0] == 0


def test_pages_and_probes_speak_for_all_workers(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    address = f"127.0.0.1:{free_port()}"
    daemon = unit(world, mld__http=address, mld__metrics="prometheus")
    until_shared(world, "w1-1", "w1-2")
    world.until(lambda: fetch(address, "/readyz")[0] == 200, what="ready")
    assert fetch(address, "/livez") == (200, "ok\n")
    assert "<html" in fetch(address, "/")[1]
    assert json.loads(fetch(address, "/2/status.json")[1])["worker"] == "w1-2"
    held = [
        f'mld_leases{{application="{world.table}",stream="{world.stream}",worker="{worker}"}} 1.0'
        for worker in ("w1-1", "w1-2")
    ]
    world.until(lambda: all(line in fetch(address, "/metrics")[1] for line in held), what="a lease of each")
    metrics = fetch(address, "/metrics")[1]
    assert metrics.count("# TYPE mld_leases gauge") == 1
    assert "mld_unit_workers_running 2.0" in metrics
    asked = [sys.executable, "-m", "mld", "status", "--live", str(daemon.file)]
    assert subprocess.run(asked, capture_output=True, text=True).stdout == "ok\n"
    os.kill(pids(daemon)["w1-2"], signal.SIGSTOP)
    os.kill(pids(daemon)["w1-1"], signal.SIGKILL)
    daemon.wait_for_event("worker_restarts", worker="w1-1")
    code, words = fetch(address, "/readyz")
    assert code == 503 and "w1-1" in words
    code, words = fetch(address, "/livez")
    assert code == 503 and words.startswith("worker w1-2: "), "one that hangs; one that starts again is no reason"
    os.kill(pids(daemon)["w1-2"], signal.SIGCONT)
    world.until(lambda: fetch(address, "/readyz")[0] == 200, what="ready again")
    assert daemon.stop() == 0


def test_what_the_command_line_defines_reaches_workers_and_no_other_command_line(make_world: MakeWorld) -> None:
    world = make_world(shards=2)
    daemon = unit(world, arguments=("-D", "mld.logLevel=debug"))
    until_shared(world, "w1-1", "w1-2")
    for worker, pid in pids(daemon).items():
        assert b"logLevel" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        daemon.wait_for_event("records_fetched", of_worker=worker, level="DEBUG")
    children = set(daemon.survivors()) - set(pids(daemon).values())
    assert children and not any(b"MLD_UNIT" in Path(f"/proc/{pid}/environ").read_bytes() for pid in children)
    assert daemon.stop() == 0
