"""A real browser without a window: Chromium, driven through the DevTools protocol over a pipe.

For tests that have to see what a page can do. Chromium is not installed by us; where there is none, they skip.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.support.patience import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",  # it does not start as root with one, and the pages are ours
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A browser that does not ask before a page reaches this machine, as most do not.
    "--disable-features=LocalNetworkAccessChecks",
    "--remote-debugging-pipe",
)
_AT_3_AND_4 = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 103); os.dup2(w, 104); os.dup2(103, 3); " + (
    "os.dup2(104, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""The pipe has to be at these two numbers, which are taken in the process that starts it."""
_LOADED = "new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', () => done()))"
_ENDS_A_MESSAGE = b"\0"


def find_browser() -> str:
    """Its path; skips the test where there is none, also under `make test`."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    return found


class BrowserError(Exception):
    """The browser refused a command, ended, or did not answer."""


class Browser:
    """A context manager; `hosts` are names that it resolves to 127.0.0.1."""

    def __init__(self, path: str, hosts: tuple[str, ...] = ()) -> None:
        self._command = [path, *_FLAGS, f"--host-resolver-rules={', '.join(f'MAP {name} 127.0.0.1' for name in hosts)}"]
        self._numbers = itertools.count(1)
        self._received = b""

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        command_out, self._commands = os.pipe()
        self._answers, answer_in = os.pipe()
        log = (Path(self._profile.name) / "log").open("wb")
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _AT_3_AND_4, str(command_out), str(answer_in)),
                    *(*self._command, f"--user-data-dir={self._profile.name}", "about:blank"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(command_out, answer_in),
                start_new_session=True,
            )
        finally:
            log.close()
            os.close(command_out)
            os.close(answer_in)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)  # its own group: all its processes
        self._process.wait(PATIENCE_S)
        os.close(self._commands)
        os.close(self._answers)
        self._profile.cleanup()

    def run(self, url: str, function: str, *arguments: object) -> Any:
        """Open the page in a tab of its own and call a JavaScript function in it; what its promise brings, as JSON."""
        tab = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        loaded = self._ask("Page.navigate", session, url=url)
        if "errorText" in loaded:
            raise BrowserError(f"{url}: {loaded['errorText']}")
        self._evaluate(session, _LOADED)
        words = ", ".join(json.dumps(argument) for argument in arguments)
        value = self._evaluate(session, f"({function})({words})")
        self._ask("Target.closeTarget", targetId=tab)
        return value

    def _evaluate(self, session: str, expression: str) -> Any:
        options = {"awaitPromise": True, "returnByValue": True}
        said = self._ask("Runtime.evaluate", session, expression=expression, **options)
        if "exceptionDetails" in said:
            raise BrowserError(json.dumps(said["exceptionDetails"]))
        return said["result"].get("value")

    def _ask(self, method: str, session: str | None = None, **parameters: object) -> Any:
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(command).encode() + _ENDS_A_MESSAGE)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            message = self._next_message(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']}")
                return message["result"]

    def _next_message(self, deadline: float) -> Any:
        while _ENDS_A_MESSAGE not in self._received:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BrowserError("no answer in time")
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                log = (Path(self._profile.name) / "log").read_text(errors="replace")
                raise BrowserError(f"the browser ended: {log[-1000:]}")
            self._received += piece
        message, _, self._received = self._received.partition(_ENDS_A_MESSAGE)
        return json.loads(message)
