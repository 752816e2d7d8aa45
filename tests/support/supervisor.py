"""A service manager as a daemon notices it: notify socket, limits of start and stop, watchdog, reload (sd_notify(3)).

What it judges is what systemd judges: whether the service said READY=1 in time, asked for more time before its time was
over, and gave signs of life. It ends a service as systemd does, the main process by SIGTERM and then SIGKILL, or by
SIGABRT when there is no sign of life.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE_S

LOOK_EVERY_S = 0.02


class Supervisor:
    """Listens from the beginning; `watch` the process once it runs. All times are monotonic seconds."""

    def __init__(self, *, watchdog_s: float | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="mld-")  # the path of a socket has to be short
        self.path = Path(self._directory.name) / "notify"
        self.watchdog_s = watchdog_s
        self.told: list[tuple[float, dict[str, str]]] = []
        self.watchdog_fired = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(LOOK_EVERY_S)
        self._changed = threading.Condition()
        self._closed = False
        self._process: subprocess.Popen[Any] | None = None
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """What the service finds in its environment."""
        found = {"NOTIFY_SOCKET": str(self.path)}
        if self.watchdog_s is not None:
            found["WATCHDOG_USEC"] = str(round(self.watchdog_s * 1e6))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._closed = True
        self._thread.join(PATIENCE_S)
        self._socket.close()
        self._directory.cleanup()

    # --- what was told -----------------------------------------------------------------------------------------------

    def messages(self, name: str) -> list[str]:
        """The values told under this name, in order."""
        with self._changed:
            return [told[name] for _, told in self.told if name in told]

    def names(self) -> list[str]:
        """The first name of each message, in order."""
        with self._changed:
            return [next(iter(told)) for _, told in self.told]

    def wait_for(self, condition: Callable[[Supervisor], object], what: str = "", within_s: float = PATIENCE_S) -> None:
        """Until what was told fulfils the condition. Raises AssertionError."""
        deadline = time.monotonic() + within_s
        while not condition(self):
            with self._changed:
                self._changed.wait(LOOK_EVERY_S)
            assert time.monotonic() < deadline, f"not within {within_s} s: {what}; told: {self.told[-20:]}"

    def wait_until_ready(self) -> None:
        """As `systemctl start` does."""
        self.wait_for(lambda it: "READY" in it.names(), "READY=1")

    # --- what it does ------------------------------------------------------------------------------------------------

    def watch(self, process: subprocess.Popen[Any]) -> None:
        """From READY=1 on, end the process by SIGABRT once it gives no sign of life for the time of the watchdog."""
        self._process = process

    def reload(self) -> None:
        """As `systemctl reload`: until the service has announced that it reloads, and that this is over."""
        assert self._process is not None
        before = len(self.told)
        self._process.send_signal(signal.SIGHUP)

        def is_over(it: Supervisor) -> bool:
            since = it.names()[before:]
            return "RELOADING" in since and "READY" in since[since.index("RELOADING") :]

        self.wait_for(is_over, "RELOADING=1, then READY=1")

    def stop(self, within_s: float) -> tuple[int, float]:
        """As `systemctl stop`: the exit code, and how long it took. SIGKILL unless the service asks for more time."""
        assert self._process is not None
        began = time.monotonic()
        self._process.terminate()
        deadline = began + within_s
        while self._process.poll() is None:
            with self._changed:
                asked = [at + int(told["EXTEND_TIMEOUT_USEC"]) / 1e6 for at, told in self.told if _extends(told)]
                self._changed.wait(LOOK_EVERY_S)
            if time.monotonic() > max([deadline, *asked]):
                self._process.kill()
        return self._process.wait(PATIENCE_S), time.monotonic() - began

    def _listen(self) -> None:
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                text = self._socket.recv(65536).decode()
                told = dict(line.split("=", 1) for line in text.split("\n"))
                with self._changed:
                    self.told.append((time.monotonic(), told))
                    self._changed.notify_all()
            self._mind_watchdog()

    def _mind_watchdog(self) -> None:
        if self.watchdog_s is None or self._process is None or self.watchdog_fired:
            return
        signs = [at for at, told in self.told if "WATCHDOG" in told or "READY" in told]
        if signs and time.monotonic() - signs[-1] > self.watchdog_s and self._process.poll() is None:
            self.watchdog_fired = True
            os.kill(self._process.pid, signal.SIGABRT)


def _extends(told: dict[str, str]) -> bool:
    return "EXTEND_TIMEOUT_USEC" in told
