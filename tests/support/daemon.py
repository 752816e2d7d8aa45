"""The daemon as a process of its own, watched through its JSON log; and what lives and dies with it.

Nothing here waits blindly: events are awaited in the log as it is written, conditions are looked at until they hold,
and both have a bound. Whatever the daemon started bears the name of its properties file in its environment, so that
nothing is left behind and everything that is ended is ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
CHILDREN = Path(__file__).with_name("children")
EVENT_TIMEOUT_S = PATIENCE_S
EXIT_TIMEOUT_S = PATIENCE_S
LOOK_EVERY_S = 0.02
LOG_TAIL_LINES = 25
FILE_VARIABLE = "MLD_PROPERTIES_FILE"

Event = dict[str, Any]


class DaemonError(AssertionError):
    """The daemon did not do what was awaited; the text ends with the end of its log."""


def child_command(script: str, *arguments: object) -> str:
    """The value of executableName for a script of `children/`; quick to start."""
    return " ".join([sys.executable, "-S", "-E", str(CHILDREN / script), *map(str, arguments)])


def until(condition: Callable[[], Any], within_s: float = EVENT_TIMEOUT_S, what: str = "") -> Any:
    """Look until the condition is true; its value. Raises AssertionError."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_s} s: {what or condition}")
        time.sleep(LOOK_EVERY_S)
    return value


class Daemon:
    """`mld run` on a properties file it writes from `keys`; a context manager, also usable with `start` and `close`.

    `command` replaces what stands before the file, `arguments` stand after it. `environment` is added to our own, or
    with `bare_environment` is all there is.
    """

    def __init__(
        self,
        directory: Path,
        keys: Mapping[str, object],
        *,
        name: str = "app",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
        bare_environment: bool = False,
        cwd: Path = ROOT,
    ) -> None:
        self.name = name
        self.file = directory / f"{name}.properties"
        self.file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
        before = [sys.executable, "-m", "mld", "run"] if command is None else command
        self.command = [*before, str(self.file), "--log-format", "json", *arguments]
        self.environment = {**({} if bare_environment else os.environ), **(environment or {})}
        self.cwd = cwd
        self.events: list[Event] = []
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._closed = False

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self.environment,
            cwd=self.cwd,
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Whatever state it is in: nothing of it lives afterwards."""
        process = getattr(self, "process", None)
        if process is None:
            return
        if process.poll() is None:
            process.kill()
            process.wait(EXIT_TIMEOUT_S)
        for pid in self.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._reader.join(EXIT_TIMEOUT_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """Ask it to stop; the exit code."""
        self.send(number)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """As a crash: nothing is written any more."""
        self.process.kill()
        self.process.wait(EXIT_TIMEOUT_S)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def wait(self, timeout_s: float = EXIT_TIMEOUT_S) -> int:
        """Its exit code, with the whole log read."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise DaemonError(f"{self.name} did not end within {timeout_s} s\n{self.tail()}") from None
        until(lambda: self._closed, what="the end of the log")
        return code

    # --- what lives --------------------------------------------------------------------------------------------------

    def survivors(self) -> list[int]:
        """Living processes this daemon has started, at any depth, also after its own end."""
        mark = f"{FILE_VARIABLE}={self.file}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def zombies(self) -> list[int]:
        """Children of the daemon that ended and were not waited for."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in listed if _state(int(pid)) == "Z"]

    # --- the log -----------------------------------------------------------------------------------------------------

    def wait_for_event(self, action: str, timeout_s: float = EVENT_TIMEOUT_S, **fields: object) -> Event:
        """The first event with this action and these fields, past or to come."""
        wanted = {"action": action, **fields}
        deadline = time.monotonic() + timeout_s
        position = 0
        with self._changed:
            while True:
                for event in self.events[position:]:
                    if wanted.items() <= event.items():
                        return event
                position = len(self.events)
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0 or self._closed:
                    break
                self._changed.wait(remaining_s)
        why = "the log ended" if self._closed else f"not within {timeout_s} s"
        raise DaemonError(f"{self.name}: no event {wanted}: {why}\n{self.tail()}")

    def with_action(self, action: str, **fields: object) -> list[Event]:
        """The events so far with this action and these fields."""
        wanted = {"action": action, **fields}
        with self._changed:
            return [event for event in self.events if wanted.items() <= event.items()]

    def log(self) -> str:
        """Everything it has written to stderr."""
        with self._changed:
            return "\n".join(self.lines)

    def tail(self) -> str:
        with self._changed:
            return "\n".join(line[:400] for line in self.lines[-LOG_TAIL_LINES:])

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip("\n")
                with self._changed:
                    self.lines.append(text)
                    with contextlib.suppress(ValueError):
                        event = json.loads(text)
                        if isinstance(event, dict):
                            self.events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "?"
