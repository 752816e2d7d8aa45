"""The printed unit under a systemd of its own, where one can run: process 1 of namespaces, with no other units.

It sees the machine read-only at most: its units, runtime and state directories are temporary file systems, and its
control group is below one that the test makes and removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.world import ENVIRONMENT, MakeWorld, World
from tests.support.daemon import CHILDREN, until
from tests.support.image import PREFIX, children_of, may_unshare
from tests.support.patience import PATIENCE_S

SYSTEMD = Path("/lib/systemd/systemd")
GROUPS = Path("/sys/fs/cgroup/systemd")
TARGETS = ("basic", "multi-user", "network-online", "shutdown", "sysinit", "umount")
ENTER = """
mount --make-rprivate /
mount --bind "$1/opt" /opt
mount --bind "$2/files" /mnt
"""
BOOT = f"""
set -eu
{ENTER}
mount -t proc proc /proc
mount --bind "$2/units" /usr/lib/systemd/system
for place in /run /etc/systemd /usr/lib/systemd/system-generators /var/lib; do
    mount -t tmpfs tmpfs "$place"
done
mkdir /run/out
mount --bind "$2/out" /run/out
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /var/tmp
export container=test
exec {SYSTEMD} --system --unit=multi-user.target --log-target=console --show-status=no
"""
DROP_IN = f"""[Service]
Environment={" ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())}
StandardOutput=null
StandardError=append:/run/out/log
"""
BLOCKS_ITS_LOOP = """
import signal, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
from mld.cli import main
main()
"""


def can_boot() -> bool:
    return os.getuid() == 0 and SYSTEMD.is_file() and (GROUPS / "cgroup.procs").is_file() and may_unshare()


pytestmark = [pytest.mark.full, pytest.mark.skipif(not can_boot(), reason="needs root, systemd and its control groups")]


class Systemd:
    """Process 1 of its own namespaces. `files` is /mnt inside."""

    def __init__(self, image: Path, directory: Path) -> None:
        self._image = image
        self._directory = directory
        self.units, self.files, self._out = (directory / name for name in ("units", "files", "out"))
        for path in (self.units, self.files, self._out):
            path.mkdir()
        directory.chmod(0o755)
        for target in TARGETS:
            (self.units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        self._group = GROUPS / f"mld-test-{uuid.uuid4().hex}"

    def printed_unit(self) -> str:
        """What `mld systemd-unit` of the image prints for /mnt/app.properties."""
        script = f"{ENTER}\ncd /\nexec {PREFIX}/bin/mld systemd-unit /mnt/app.properties"
        command = ["unshare", "-m", "sh", "-euc", script, "sh", str(self._image), str(self._directory)]
        environment = {"PATH": f"{PREFIX}/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=PATIENCE_S)
        return done.stdout

    def install(self, name: str, text: str, drop_in: str) -> None:
        (self.units / f"{name}.service").write_text(text)
        (self.units / f"{name}.service.d").mkdir()
        (self.units / f"{name}.service.d" / "test.conf").write_text(drop_in)

    def boot(self) -> None:
        self._group.mkdir()
        enter = f'echo $$ > {self._group}/cgroup.procs; exec unshare -C -m -p -f -u -i sh -c "$0" sh "$@"'
        with (self._directory / "boot.log").open("wb") as log:
            command = ["sh", "-c", enter, BOOT, str(self._image), str(self._directory)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: children_of(self._process.pid), what="systemd")
        (self._pid,) = children_of(self._process.pid)
        is_up = lambda: self.ctl("is-system-running").stdout.strip() == "running"  # noqa: E731
        until(is_up, 30, (self._directory / "boot.log").read_text() + self.ctl("is-system-running").stderr)

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["nsenter", "-t", str(self._pid), "-m", "-p", "-C", "-u", "-i", "systemctl", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def shown(self, name: str, key: str) -> str:
        return self.ctl("show", name, "--value", "-p", key).stdout.strip()

    def main_pid(self) -> int:
        """Of the daemon, as this machine counts."""
        mark = "/mnt/app.properties"
        (pid,) = (pid for pid in _below(self._pid) if mark in Path(f"/proc/{pid}/cmdline").read_text())
        return pid

    def until_told(self, name: str, status: str) -> None:
        """Until the daemon has said so to systemd."""
        try:
            until(lambda: self.shown(name, "StatusText") == status, what=status)
        except AssertionError as error:
            told = self.shown(name, "StatusText")
            raise AssertionError(f"{error}; told: {told}\n{self.log()[-4000:]}") from None

    def log(self) -> str:
        return (self._out / "log").read_text()

    def close(self) -> None:
        if hasattr(self, "_pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)  # and with it everything in its namespace
            self._process.wait(PATIENCE_S)
        for folder, _, _ in os.walk(self._group, topdown=False):
            until(lambda folder=folder: _removed(Path(folder)), what="the end of a control group")  # type: ignore[misc]


def _below(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from _below(child)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def systemd(image: Path) -> Iterator[Systemd]:
    with tempfile.TemporaryDirectory(prefix="mld-systemd-", dir="/var/tmp") as name:
        running = Systemd(image, Path(name))
        try:
            yield running
        finally:
            running.close()


def prepared(systemd: Systemd, world: World, drop_in: str, **keys: object) -> str:
    """The unit of a daemon with recording children is installed, and systemd runs; the service's name."""
    shutil.copy(CHILDREN / "recorder.py", systemd.files)
    (systemd.files / "blocks.py").write_text(BLOCKS_ITS_LOOP)
    child = "python3 -S -E /mnt/recorder.py . on_shutdown=hang"
    lines = (f"{key} = {value}\n" for key, value in world.keys("w1", child, keys).items())
    (systemd.files / "app.properties").write_text("".join(lines))
    for path in systemd.files.iterdir():
        path.chmod(0o644)
    text = systemd.printed_unit()
    named = re.search(r"SyslogIdentifier=(.+)", text)
    assert named is not None
    systemd.install(named[1], text, DROP_IN + drop_in)
    systemd.boot()
    return named[1]


def test_systemd_starts_reloads_and_stops_it_and_grants_the_time_that_it_asks_for(
    systemd: Systemd, make_world: MakeWorld
) -> None:
    world = make_world(shards=2)
    name = prepared(systemd, world, "TimeoutStopSec=2\n", shutdownGraceMillis=5000)
    started = systemd.ctl("start", name)
    assert started.returncode == 0, systemd.ctl("status", name).stdout + systemd.log()
    systemd.until_told(name, "2 shards, 0 ms behind")
    limits = Path(f"/proc/{systemd.main_pid()}/status").read_text()
    assert re.search(r"NoNewPrivs:\s1\n", limits)
    assert re.search(r"CapBnd:\s0+\n", limits)
    assert re.search(r"Seccomp:\s2\n", limits)
    file = systemd.files / "app.properties"
    file.write_text(file.read_text() + "mld.logLevel = debug\nmaxRecords = 7\n")
    assert systemd.ctl("reload", name).returncode == 0
    until(lambda: "needs_restart=['maxRecords']" in systemd.log(), what="the reload")
    assert systemd.shown(name, "ActiveState") == "active"
    assert systemd.ctl("stop", name).returncode == 0  # after 5 s: the children hang
    assert "stop_forced" in systemd.log()
    assert "worker_stopped graceful=False" in systemd.log()
    assert systemd.shown(name, "Result") == "success"  # and neither "timeout" nor, for exit code 143, "exit-code"


def test_the_watchdog_of_systemd_replaces_a_daemon_whose_loop_hangs(systemd: Systemd, make_world: MakeWorld) -> None:
    world = make_world()
    blocks = f"ExecStart=\nExecStart={PREFIX}/bin/python /mnt/blocks.py run /mnt/app.properties\n"
    name = prepared(systemd, world, f"WatchdogSec=5\nRestartSec=100ms\n{blocks}")
    assert systemd.ctl("start", name).returncode == 0, systemd.log()
    os.kill(systemd.main_pid(), signal.SIGUSR1)
    until(lambda: systemd.shown(name, "NRestarts") == "1", what="the watchdog")
    assert "Fatal Python error: Aborted" in systemd.log()
    assert 'File "/mnt/blocks.py", line 3' in systemd.log()
    until(lambda: systemd.shown(name, "ActiveState") == "active", what="the daemon that comes next")
