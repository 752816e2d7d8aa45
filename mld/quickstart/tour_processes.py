"""What the tours use on this machine: processes that end with the tour, a locked directory, a free port."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import mld
from mld.core.errors import MldError

LOCK_FILE = ".lock"
SERVER_START_S = 30.0
STOP_S = 60.0
"""How long a daemon may take to stop before it is killed."""
_PR_SET_PDEATHSIG = 1


class QuickstartError(MldError):
    """The tour cannot go on. The text names what to look at."""


def mld_command() -> str:
    """Return the command by which the user can call `mld`: ``mld`` if the PATH has it, else the path of its script."""
    if shutil.which("mld"):
        return "mld"
    checkout = Path(mld.__file__).parents[1] / "bin" / "mld"
    script = checkout if checkout.exists() else Path(sys.executable).with_name("mld")
    relative = os.path.relpath(script)
    return str(script) if relative.startswith("..") else relative


@dataclass
class EndSignal:
    """The signal that ends the tour, once it has come.

    Its handler raises SystemExit at whatever line the tour is. Python ignores an exception that is raised in a
    destructor, or in a callback before or after a fork. So the tour also calls `raise_if_received` wherever it waits.
    """

    number: int | None = None

    def receive(self, number: int, _: FrameType | None) -> None:
        """Remember the signal, and end the tour. Python calls this when the signal comes."""
        self.number = number
        self.raise_if_received()

    def raise_if_received(self) -> None:
        """Raise SystemExit if the signal has come."""
        if self.number is not None:
            raise SystemExit(128 + self.number)


@contextmanager
def signals_end_us() -> Iterator[EndSignal]:
    """Make SIGTERM and SIGHUP end the tour like Ctrl-C, so that all its processes are stopped."""
    end = EndSignal()
    before = {number: signal.signal(number, end.receive) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def only_one_in(directory: Path) -> Iterator[None]:
    """Lock the directory while the context is open. Raises QuickstartError if another tour has locked it."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise QuickstartError(
                f"wait for the end of another quickstart in {directory}, or give --directory"
            ) from None
        yield


def free_port(wanted: int) -> int:
    """Return a free port of the loopback interface: the wanted one, or if that is not free, any. Raises
    QuickstartError.
    """
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise QuickstartError("no port of 127.0.0.1 is free for the status page")


@contextmanager
def process(
    command: Sequence[str],
    stderr: Any,
    stdout: Any = subprocess.PIPE,
    *,
    stdin: Any = subprocess.DEVNULL,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while the context is open; then end it by SIGTERM, or by SIGKILL if that does not help.

    On Linux the process ends even if this one is killed.
    """
    with subprocess.Popen(
        command,
        stdout=stdout,
        stderr=stderr,
        stdin=stdin,
        process_group=0,
        cwd=cwd,
        env=environment,
        preexec_fn=_ends_with_us(),  # noqa: PLW1509 - no thread of ours runs yet
    ) as started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.terminate()
                try:
                    started.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    started.kill()


def _ends_with_us() -> Callable[[], None] | None:
    """Return a function for the child, which makes the kernel kill the child when this process ends; None if the system
    cannot do so.
    """
    if sys.platform != "linux":
        return None
    system = ctypes.CDLL(None)

    def ask() -> None:
        system.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    return ask


def ready_endpoint(server: subprocess.Popen[bytes], errors: Path) -> str:
    """Return the endpoint that the embedded AWS prints on its first line. If it prints nothing within SERVER_START_S,
    it is killed. Raises QuickstartError if it does not start.
    """
    assert server.stdout is not None
    limit = threading.Timer(SERVER_START_S, server.kill)
    limit.start()
    line = server.stdout.readline()
    limit.cancel()
    limit.join()
    try:
        return str(json.loads(line)["endpoint"])
    except (ValueError, KeyError):
        raise QuickstartError(f"the embedded AWS did not start; see {errors}") from None
