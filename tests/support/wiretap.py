"""A recording proxy before DynamoDB: which writes to lease rows a worker made, and what the row was after each.

Each worker gets a tap of its own, so the writer of every row version is known whatever the row says. The rows come from
the service's own answers (ReturnValues ALL_NEW), whose lease counters put the writes of all workers in one order.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

UPSTREAM_TIMEOUT_S = 60.0
HOLD_MAX_S = 120.0  # a test that fails while it holds a request must not keep its thread
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One accepted UpdateItem of a lease row. `row` is the row after it, in DynamoDB JSON.

    Times are CLOCK_MONOTONIC nanoseconds.
    """

    writer: str
    sent_at: int
    answered_at: int
    expression: str
    row: dict[str, Any]

    @property
    def key(self) -> str:
        return str(self.row["leaseKey"]["S"])

    @property
    def counter(self) -> int:
        return int(self.row["leaseCounter"]["N"])

    @property
    def owner(self) -> str | None:
        """Who may renew and checkpoint: while a handoff is pending that is the old owner."""
        value = self.row.get("checkpointOwner") or self.row.get("leaseOwner")
        return None if value is None else str(value["S"])

    @property
    def begins_handoff(self) -> bool:
        """Names the next owner and leaves the counter alone."""
        return "#checkpointOwner = " in self.expression

    @property
    def checkpoint(self) -> str:
        return str(self.row["checkpoint"]["S"])

    @property
    def changes_owner(self) -> bool:
        return "leaseOwner" in self.expression or "checkpointOwner" in self.expression

    @property
    def is_checkpoint(self) -> bool:
        return ":checkpoint" in self.expression


class Held:
    """One request on its way for as long as the test wants."""

    def __init__(self, operation: str, text: str) -> None:
        self.caught = threading.Event()
        self.released = threading.Event()
        self._operation = operation
        self._text = text.encode()

    def is_meant(self, target: str, body: bytes) -> bool:
        return not self.caught.is_set() and target.endswith(f".{self._operation}") and self._text in body


class WireTap:
    """Listens on `endpoint`, forwards to `upstream`. A call that gets no answer there gets none here either."""

    def __init__(self, upstream: str, writer: str, writes: list[RowWrite]) -> None:
        tap = self
        self.writer = writer
        self.writes = writes
        self.refused: list[str] = []
        self._held: Held | None = None

        class Handler(_Handler):
            owner = tap
            host = urlsplit(upstream).netloc

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hold(self, operation: str, text: str) -> Held:
        """Keep the next request of that operation whose body contains `text` until it is released."""
        self._held = Held(operation, text)
        return self._held

    def delay(self, target: str, body: bytes) -> None:
        """Return when the request may travel on."""
        held = self._held
        if held is not None and held.is_meant(target, body):
            held.caught.set()
            held.released.wait(HOLD_MAX_S)

    def note(self, target: str, body: bytes, status: int, answer: bytes, sent_at: int) -> None:
        if not target.endswith(".UpdateItem"):
            return
        request = json.loads(body)
        if status != 200:
            self.refused.append(next(iter(request["Key"].values()))["S"])
            return
        row = json.loads(answer).get("Attributes")
        if row and "leaseCounter" in row:
            self.writes.append(RowWrite(self.writer, sent_at, time.monotonic_ns(), request["UpdateExpression"], row))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: WireTap
    host: str

    def setup(self) -> None:
        super().setup()
        self.upstream = http.client.HTTPConnection(self.host, timeout=UPSTREAM_TIMEOUT_S)

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        self.upstream.close()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        sent_at = time.monotonic_ns()
        self.owner.delay(self.headers.get("x-amz-target", ""), body)
        try:
            self.upstream.request("POST", self.path, body, dict(self.headers.items()))
            response = self.upstream.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            self.upstream.close()
            return
        self.owner.note(self.headers.get("x-amz-target", ""), body, response.status, answer, sent_at)
        head = [f"HTTP/1.1 {response.status} {response.reason}"]
        head += [f"{name}: {value}" for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
        head += [f"content-length: {len(answer)}", "", ""]
        self.wfile.write("\r\n".join(head).encode("latin-1") + answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
