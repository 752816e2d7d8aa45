"""`mld top` as an operator uses it: once into a file, live on a terminal, from each of its sources."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.acceptance.commands import MLD, ROOT, mld
from tests.acceptance.test_here import environment, start
from tests.integration.world import MakeWorld
from tests.support.patience import PATIENCE_S

__all__ = ["environment"]
SCREEN_LINES, SCREEN_COLUMNS = 20, 100
HOME = "\x1b[H"


@contextmanager
def status_server(shards: list[dict[str, Any]]) -> Iterator[tuple[str, Callable[[], None]]]:
    """A daemon's `/status.json`, and what makes it fail."""
    failing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"application": "clicks", "shards": shards, "trouble": None}).encode()
            self.send_response(503 if failing.is_set() else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", failing.set
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._handle, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", SCREEN_LINES, SCREEN_COLUMNS, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [str(MLD), *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),  # Ctrl-C is for whoever has the terminal
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(SCREEN_COLUMNS), "LINES": str(SCREEN_LINES)},
        )
        self.shown = ""

    def read_until(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._handle], [], [], 0.1)[0]:
                self.shown += os.read(self._handle, 65536).decode()

    def screens(self) -> list[str]:
        """What stood on the screen, one after the other, without colours."""
        shown = re.sub(r"\x1b[\[0-9;?]*\Z", "", self.shown)  # a sequence that was read in part
        screens = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", one) for one in shown.split(HOME)[1:]]
        return [one for one in screens if one.strip()]

    def press(self, keys: bytes) -> int:
        """Press keys; the exit code."""
        os.write(self._handle, keys)
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:  # read on: it waits until its last output has left
            assert time.monotonic() < deadline, self.shown
            if select.select([self._handle], [], [], 0.05)[0]:
                self.shown += os.read(self._handle, 65536).decode(errors="replace")
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._handle)
        os.close(self._theirs)


@contextmanager
def terminal(*arguments: object) -> Iterator[Terminal]:
    opened = Terminal(*arguments)
    try:
        yield opened
    finally:
        opened.close()


def thousand() -> list[dict[str, Any]]:
    return [
        {"shard": f"shardId-{number:012d}", "state": "processing", "behindSeconds": number / 2, "owner": "w" * 60}
        for number in range(1000)
    ]


def test_a_thousand_shards_fit_the_screen_and_q_ends_it() -> None:
    with status_server(thousand()) as (url, fail), terminal("top", "--url", url, "--every", "1s") as screen:
        screen.read_until("more, at most")
        fail()
        screen.read_until("no answer, this is as of")
        assert screen.press(b"q") == 0
        assert screen.is_as_before
        for shown in screen.screens():
            lines = shown.replace("\r", "").split("\n")
            assert len(lines) <= SCREEN_LINES
            assert [line for line in lines if len(line.rstrip()) > SCREEN_COLUMNS] == []
        first, last = screen.screens()[0], screen.screens()[-1]
        assert "1,000 shards: 1000 processing; furthest behind: 8 min" in first
        assert "shardId-000000000999" in first and "shardId-000000000998" in first
        assert "answers 503" in last and "shardId-000000000999" in last


def test_ctrl_c_ends_it_and_leaves_the_terminal_as_it_was() -> None:
    with status_server(thousand()[:3]) as (url, _), terminal("top", "--url", url) as screen:
        screen.read_until("3 shards")
        assert screen.press(b"\x03") == 0
        assert screen.is_as_before


def test_of_a_fleet_and_of_the_daemon_here(make_world: MakeWorld, environment: dict[str, str]) -> None:
    world = make_world(shards=2)
    daemon = start(world, environment)
    world.put(10)
    world.until_delivered()
    by_table = mld("top", daemon.file, environment=environment)
    assert by_table.returncode == 0, by_table.stderr
    assert f"{world.table} by its lease table" in by_table.stdout
    assert len(re.findall(r"^shardId-\d+ +\w+ +w1 ", by_table.stdout, re.MULTILINE)) == 2
    here = mld("top", daemon.file, "--here", environment=environment)
    assert here.returncode == 0, here.stderr
    assert f"{world.table}: worker w1, pid {daemon.process.pid}" in here.stdout
    assert re.search(r"^shard +state +behind +records/s +KB/s", here.stdout, re.MULTILINE)
    value = json.loads(mld("top", daemon.file, "--here", "-o", "json", environment=environment).stdout)
    assert sum(shard["records"] for shard in value["shards"]) == 10


def test_a_wrong_address_is_a_sentence() -> None:
    for url, words in (
        ("localhost:9404", "--url is no URL"),
        ("http://127.0.0.1:1/", "127.0.0.1:1 cannot be reached"),
        ("http://user:pl4nted@127.0.0.1:1/", "127.0.0.1:1 cannot be reached"),
    ):
        result = mld("top", "--url", url)
        assert result.returncode == 1
        assert words in result.stderr and "pl4nted" not in result.stderr
    assert mld("top").returncode == 2
    assert mld("top", "--here", "--url", "http://127.0.0.1:1/").returncode == 2
