"""A real HTTP proxy, written by others (PyPI proxy.py), as a process of its own on a free loopback port."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.servers import ServerProcess, free_port, require, wait_for_answer

PROBE_PAUSE_S = 0.01


class ForwardProxy(ServerProcess):
    """Speaks plain HTTP to its clients, and asks for `user` (``name:password``); writes its log to `directory`."""

    def __init__(self, directory: Path, *, user: str | None = None) -> None:
        require(importlib.util.find_spec("proxy") is not None, "proxy.py")
        self._log = directory / "proxy.log"
        self._user = user

    def start(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.spawn(
            [sys.executable, "-W", "ignore", "-m", "proxy", "--hostname", "127.0.0.1", "--port", str(self.port)]
            + ["--num-workers", "1", "--num-acceptors", "1", "--log-file", str(self._log)]
            + (["--basic-auth", self._user] if self._user else []),
            stdout=subprocess.DEVNULL,
        )
        wait_for_answer(self, lambda: socket.create_connection(("127.0.0.1", self.port), timeout=1).close())

    def log(self) -> str:
        """Whole once the server has been stopped."""
        return self._log.read_text()

    async def has_logged(self, what: str, *, times: int) -> None:
        """Wait for this many lines with `what`; there is one for each connection, written when it has ended."""
        while self.log().count(what) < times:
            await asyncio.sleep(PROBE_PAUSE_S)
        assert self.log().count(what) == times
