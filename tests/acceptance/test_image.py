"""The image of deploy/Dockerfile, as far as it can be made without a container engine.

The steps of its build stage run as they are written, in a directory instead of a layer; then the daemon runs from it as
in a container: below an init or as process 1 itself, in namespaces of its own, for a user without rights, with nothing
writable but /tmp. What is not tried here: the base image, apt-get, and the layers themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import ROOT, Daemon, until
from tests.support.image import PREFIX, children_of, may_unshare
from tests.support.patience import PATIENCE_S
from tests.unit.test_deploy import PROPERTIES

pytestmark = pytest.mark.full
UID = 10001
CONTAINER = """
set -eu
mount --bind "$1/opt" /opt
mount --bind "$2" /mnt
mount -t proc proc /proc
mount -t tmpfs -o mode=1777,size=64m tmpfs /tmp
mount -o remount,ro,bind /
cd /mnt
shift 2
exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --bounding-set -all "$@"
"""
LEAVES_AN_ORPHAN = """
( sleep 0.2 & ) </dev/null >/dev/null 2>&1
exec python -m mld.processors.archive /tmp/archive
"""


def test_everything_that_the_daemon_needs_is_in_the_image_and_nothing_else(image: Path) -> None:
    python = image / "opt/mld/bin/python"

    def run(*words: object) -> str:
        command = [python, *map(str, words)]
        done = subprocess.run(command, cwd="/", env={"POD_NAME": "p"}, capture_output=True, text=True, check=True)
        return done.stdout

    assert re.match(r"mld \d", run("-m", "mld", "--version"))
    assert "0 error(s)" in run("-m", "mld", "check", PROPERTIES)
    assert "ExecStart" in run("-m", "mld", "systemd-unit", PROPERTIES)
    run("-c", "import prometheus_client, mld.serving.web_pages, mld.processors.sdk, mld.processors.zygote")
    packages = run("-m", "pip", "list", "--format", "freeze")
    assert not re.search(r"(?i)^(moto|pytest|pyspark)=", packages, re.MULTILINE)


can_contain = pytest.mark.skipif(not may_unshare(), reason="needs root and namespaces")
has_tini = pytest.mark.skipif(not Path("/usr/bin/tini").is_file(), reason="tini is not installed")


INITS = [pytest.param(("/usr/bin/tini", "--"), marks=has_tini, id="tini"), pytest.param((), id="no init")]


@can_contain
@pytest.mark.parametrize("init", INITS)
def test_the_daemon_runs_as_in_a_container(
    image: Path, make_world: MakeWorld, tmp_path: Path, init: tuple[str, ...]
) -> None:
    world = make_world(shards=2)
    inside = tmp_path / "mnt"
    inside.mkdir()
    (inside / "child.sh").write_text(LEAVES_AN_ORPHAN)
    (inside / "enter.sh").write_text(CONTAINER)
    daemon = Daemon(inside, world.keys("pod-1", "/bin/sh /mnt/child.sh", {}))
    for path in (inside, *inside.iterdir()):
        path.chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{PREFIX}/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    words = ["sh", inside / "enter.sh", image, inside, *init, "mld", "run", "/mnt/app.properties"]
    daemon.command = ["unshare", "-m", "-p", "-f", *map(str, words), "--log-format", "json"]
    daemon.environment = environment
    world.daemons.append(daemon)
    daemon.start()
    daemon.wait_for_event("daemon_starting")
    (first,) = children_of(daemon.process.pid)
    try:
        _use(world, daemon, first, has_init=bool(init))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)  # and with it everything in its namespace


def _use(world: World, daemon: Daemon, first: int, *, has_init: bool) -> None:
    def within(script: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "-t", str(first), "-m", "-p", "-w", "setpriv", f"--reuid={UID}", f"--regid={UID}"]
        command += ["--clear-groups", "/bin/sh", "-c", script]
        return subprocess.run(
            command, capture_output=True, text=True, env=daemon.environment, check=False, timeout=PATIENCE_S
        )

    world.put(20)
    for shard in world.shards():
        daemon.wait_for_event("consumer_started", shard=shard["ShardId"])
    world.until_caught_up()
    assert bool(daemon.with_action("no_init")) is not has_init
    probe = within("mld status --live")
    assert probe.returncode == 0, probe.stderr
    assert within("touch /opt/x /etc/x /mnt/x").returncode != 0
    assert within("touch /tmp/x").returncode == 0
    states = "grep -l '^State:.Z' /proc/[0-9]*/status"
    if has_init:
        until(lambda: within(states).stdout == "", what="nothing that ended is left behind")
    else:
        until(lambda: len(within(states).stdout.split()) == 2, what="both orphans stay: this is why there is an init")
    os.kill(first, signal.SIGHUP)
    daemon.wait_for_event("reloaded")
    os.kill(first, signal.SIGTERM)
    assert daemon.wait() == 0
    assert daemon.with_action("worker_stopped", graceful=True)


BUILT = os.environ.get("MLD_IMAGE")
HARDENED = (
    "--read-only --tmpfs /tmp:mode=1777,size=64m --cap-drop ALL --security-opt no-new-privileges --stop-timeout 60"
)
"""The options of the page."""
in_podman = pytest.mark.skipif(not BUILT, reason="make test-image names an image that it has built")


def podman(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["podman", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=PATIENCE_S)


@pytest.fixture
def container_name() -> Iterator[str]:
    name = f"mld-test-{os.getpid()}"
    yield name
    podman("rm", "--force", "--time", 0, name, check=False)


@in_podman
@pytest.mark.parametrize("namespace", [(), ("--uidmap=0:100000:65536",)], ids=["plain", "user namespace"])
def test_the_image_that_podman_built_runs_as_the_page_says(
    make_world: MakeWorld, tmp_path: Path, container_name: str, namespace: tuple[str, ...]
) -> None:
    assert HARDENED.replace(" --stop", " \\\n      --stop") in (ROOT / "docs/use/running.md").read_text()
    world = make_world(shards=2)
    daemon = Daemon(tmp_path, world.keys("pod-1", "python -m mld.processors.archive /tmp/archive", {}))
    daemon.file.chmod(0o644)
    variables = [word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    mount = f"{daemon.file}:/etc/mld/app.properties:ro"
    options = [*namespace, "--network=host", *HARDENED.split(), *variables, "-v", mount]
    daemon.command = [
        "podman",
        "run",
        "--name",
        container_name,
        *options,
        f"{BUILT}-mld",
        "run",
        "/etc/mld/app.properties",
    ]
    daemon.command += ["--log-format", "json"]
    world.daemons.append(daemon)
    daemon.start()
    world.put(20)
    for shard in world.shards():
        daemon.wait_for_event("consumer_started", shard=shard["ShardId"])
    world.until_caught_up()
    assert not daemon.with_action("no_init")
    assert podman("healthcheck", "run", container_name).returncode == 0
    within = "id -u; ls /tmp/archive* | grep -c shardId; touch /opt/x /etc/x /srv/mld/x 2>/dev/null || echo read-only"
    assert podman("exec", container_name, "sh", "-c", within).stdout.split() == ["10001", "2", "read-only"]
    podman("kill", "--signal", "HUP", container_name)
    daemon.wait_for_event("reloaded")
    podman("stop", container_name)
    assert daemon.wait() == 0
    assert daemon.with_action("worker_stopped", graceful=True)


@in_podman
def test_the_image_for_spark_that_podman_built_has_an_engine_that_starts() -> None:
    program = (
        "from pyspark.sql import SparkSession as S; print(S.builder.master('local[1]').getOrCreate().range(9).count())"
    )
    entry = ["--network=host", *HARDENED.replace("64m", "1g").split(), "--entrypoint", "python", f"{BUILT}-spark"]
    assert podman("run", "--rm", *entry, "-c", program).stdout.split()[-1] == "9"
