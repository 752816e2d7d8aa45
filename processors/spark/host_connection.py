"""`HostConnection`: the child's end of the link to the session host. It writes records into pages for the host.

A page is a file that Spark reads. The child counts the lines of records that the daemon sends; the host reports up to
which line all records are in the sinks. This module is quick to import, because a child has to start quickly.

The frames (`link`): the child says HELLO and gets READY. Before a line of records it asks for ROOM, and waits for GO,
unless the line is a small addition to the page. It reports a complete page by PAGE, also when the host asks for the
page by CUT. The host reports commits by COMMITTED, or by FAILED that the shard has to stop; SAID has lines for the
daemon's log.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark import link
from mld.processors.spark.fatal import EXIT_FAILURE, FatalError

if TYPE_CHECKING:
    from mld.processors.spark.batch.page_file import PageWriter
    from mld.processors.spark.batch.record_columns import RecordColumns


class HostConnection:
    """The child's connection to the session host."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.ready: dict[str, Any] = {}
        """Body of the READY frame; empty until that frame comes."""
        self.brought = 0
        """The number of the last line whose records are in a page."""
        self.committed = 0
        """The number of the last line whose records are in all sinks."""
        self.position: tuple[str, int] | None = None
        """Position of the last committed record; None once it is checkpointed."""
        self.may_go = False
        """Whether the host has sent GO: there is room for the line that waits."""
        self._page: PageWriter | None = None
        self._page_bytes = 0
        """Bytes of the lines in the open page."""
        self._unasked_bytes = 0
        """Bytes of lines in the open page that the host does not know of yet."""
        self._behind: int | None = None
        """How many milliseconds the last line is behind the tip; None if unknown."""
        self._pages = 0
        """How many pages were begun."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        if self._page is not None:
            self._page.abandon()
        self._socket.close()

    def hello(self, shard_id: str, sequence: str | None, sub: int | None) -> None:
        """Send HELLO, with the shard, its checkpoint and the identity of its stream."""
        from mld.processors.spark import writer_identity

        names = {"stream": writer_identity.stream_key(os.environ), "shard": shard_id, "sequence": sequence, "sub": sub}
        identity = {
            "arn": os.environ.get(writer_identity.ARN_VARIABLE),
            "created": os.environ.get(writer_identity.CREATED_VARIABLE),
        }
        ancestors = os.environ.get(writer_identity.ANCESTORS_VARIABLE, "").split()
        self.send(link.HELLO, {**names, **identity, "ancestors": ancestors, "version": link.VERSION})

    # --- records -----------------------------------------------------------------------------------------------------

    def bring(self, groups: Iterable[RecordColumns], size: int, behind: int | None) -> None:
        """Wait until the host has room for a line of `size` bytes, then put its records (`groups`) into the page.

        `behind` is how many milliseconds the records are behind the tip. Raises FatalError."""
        self._behind = behind
        if self._page is not None and self._unasked_bytes + size <= self.ready["unaskedBytes"]:
            self._unasked_bytes += size
        else:
            self._await_room(size)
        if not size:
            return
        if self._page is None:
            self._page, self._page_bytes = self._new_page(), 0
        for group in groups:
            self._page.add(group)
        self.brought += 1
        self._page_bytes += size
        if self._page_bytes >= self.ready["pageBytes"]:
            self.end_page()

    def _await_room(self, size: int) -> None:
        """Ask the host for room for a line of this size, and wait until there is room. Raises FatalError."""
        self._report(link.ROOM, {"size": size})
        while not self.may_go:
            self.receive()
        self.may_go = False

    def end_page(self) -> None:
        """Complete the open page and report it to the host. If no page is open, report zero
        records. Raises FatalError.
        """
        if self._page is None:
            self._report(link.PAGE, {"records": 0})
            return
        page, self._page = self._page.close(), None
        about = {"number": self._pages, "upto": self.brought, "size": self._page_bytes}
        self._report(link.PAGE, {**about, **page._asdict()})

    def _report(self, kind: int, body: dict[str, Any]) -> None:
        """Send a frame, with what the host does not know of the open page yet, and how far behind the last line is."""
        unasked, self._unasked_bytes = self._unasked_bytes, 0
        self.send(kind, {**body, "unasked": unasked, "behind": self._behind})

    def _new_page(self) -> PageWriter:
        """Begin the next page of this child. Pages are numbered."""
        from mld.processors.spark.batch.page_file import PageWriter
        from mld.processors.spark.positions import StreamShard

        self._pages += 1
        path = Path(f"{self.ready['pages']}{self._pages:08d}.parquet")
        return PageWriter(path, StreamShard(self.ready["stream"], self.ready["shard"]))

    # --- frames ------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Wait for one frame and act on it. Raises FatalError if the host has failed or is gone."""
        kind, length = link.decode_header(self._exactly(link.HEADER.size))
        body = link.decode_body(self._exactly(length))
        if kind == link.READY:
            self.ready = body
        elif kind == link.GO:
            self.may_go = True
        elif kind == link.CUT:
            self.end_page()
        elif kind == link.COMMITTED:
            self.committed = body["upto"]
            self.position = (body["sequence"], body["sub"])
        elif kind == link.SAID:
            sys.stderr.write(body["text"])
        elif kind == link.FAILED:
            raise FatalError(body["reason"], body.get("status", EXIT_FAILURE))

    def asked(self, kind: int, is_done: Callable[[], bool]) -> bool:
        """Send a request of this kind, and take frames until `is_done` returns True. Return False if that is not the
        case within `mld.spark.drainTimeoutMillis`."""
        self.send(kind)
        deadline = time.monotonic() + self.ready["drainMillis"] / 1000
        while not is_done():
            if not self.receive_within(deadline - time.monotonic()):
                return False
        return True

    def receive_within(self, seconds: float) -> bool:
        """Wait at most `seconds` for one frame, and act on it. Return False if none comes."""
        if not select.select([self._socket], [], [], max(0.0, seconds))[0]:
            return False
        self.receive()
        return True

    def send(self, kind: int, body: dict[str, Any] | None = None) -> None:
        """Send one frame. Raises FatalError if the host is gone, with the reason that the host has sent, if any."""
        try:
            self._socket.sendall(link.encode(kind, body))
        except OSError:
            while True:  # the host has closed the link; a FAILED frame that it sent before has the reason
                self.receive()

    def _exactly(self, size: int) -> bytes:
        """Read this many bytes. Raises FatalError if the host is gone."""
        data = b""
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except OSError:
                piece = b""
            if not piece:
                raise FatalError("the Spark session host went away; the shard starts again from its checkpoint")
            data += piece
        return data
