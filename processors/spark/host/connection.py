"""The host's end of a link: what a child brings, and what it hears of it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from mld.processors.spark import link
from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard
from mld.processors.spark.settings import Sanitizer
from mld.properties.redaction import printable

if TYPE_CHECKING:
    from mld.processors.spark.host.session_host import SessionHost

SAID_BACKLOG_BYTES = 256 * 1024
"""A child that does not read gets no more lines for its standard error."""


class ChildConnection(asyncio.BufferedProtocol):
    """One child."""

    def __init__(self, host: SessionHost, number: int, fit: Sanitizer = printable) -> None:
        self._host = host
        self._fit = fit
        self.number = number
        self.shard: StreamShard | None = None
        self.reached: RecordPosition | None = None
        """What stands right before its next page: its checkpoint, then the end of the page before. None: unknown."""
        self.waiting: deque[Offer] = deque()
        """Pages that are complete and not committed."""
        self.open_bytes = 0
        """Of lines that are in no complete page yet."""
        self.open_since = 0.0
        """When the first of them came."""
        self.is_cutting = False
        """Whether the child was told CUT and has not answered."""
        self.asked_bytes = 0
        """Size of the line that the child waits with."""
        self._behind: int | None = None
        """How far that line is behind the tip."""
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(link.HEADER.size)
        self._filled = 0
        self._kind: int | None = None
        self.closed = False

    # --- what arrives ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._host.gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._buffer):
            try:
                self._complete()
            except (link.LinkError, KeyError, TypeError, ValueError) as error:
                self.fail(f"the child and the session host do not understand each other: {error!r}")

    def _complete(self) -> None:
        """Take what was waited for: a header or a body, which is an object and so never empty."""
        if self._kind is None:
            self._kind, length = link.decode_header(self._buffer)
            self._expect(max(1, length))
            return
        kind, body = self._kind, link.decode_body(self._buffer)
        self._kind = None
        self._expect(link.HEADER.size)
        self._handle(kind, body)

    def _expect(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._filled = 0

    def _handle(self, kind: int, body: dict[str, Any]) -> None:
        match kind:
            case link.HELLO:
                self._host.hello(self, body)
            case link.ROOM:
                self.asked_bytes, self._behind = int(body["size"]), body["behind"]
                self._host.asked(self)
            case link.PAGE:
                self.is_cutting = False
                self._host.paged(self, self._page(body) if body["records"] else None)
            case link.FLUSH:
                self._host.flush(self)
            case link.ENDED:
                self._host.ended(self)
            case link.BYE:
                self.close()
            case _:
                raise link.LinkError(f"a child does not say {kind}")

    def _page(self, body: dict[str, Any]) -> Offer:
        assert self.shard is not None
        first, last = (RecordPosition(int(sequence), int(sub)) for sequence, sub in (body["first"], body["last"]))
        page = Offer(
            self.number,
            int(body["number"]),
            self.shard,
            first,
            last,
            int(body["records"]),
            int(body["size"]),
            self.open_since,
            self.reached,
            int(body["upto"]),
        )
        self.reached = last
        self.open_bytes -= page.size
        self.open_since = time.monotonic()
        self.waiting.append(page)
        return page

    def go_on(self) -> None:
        """Go on, as there is room for the line that the child waits with."""
        if not self.open_bytes:
            self.open_since = time.monotonic()
        self.open_bytes += self.asked_bytes
        self._host.brought(self, self.asked_bytes, self._behind)
        self._write(link.GO, {})

    def cut(self) -> None:
        """Ask for what is in the child's page."""
        self.is_cutting = True
        self._write(link.CUT, {})

    @property
    def has_open(self) -> bool:
        """Whether something that it brought is not committed."""
        return bool(self.open_bytes or self.waiting)

    @property
    def waiting_since(self) -> float | None:
        """When the oldest of what is not committed came."""
        if self.waiting:
            return self.waiting[0].arrived_at
        return self.open_since if self.open_bytes else None

    # --- what is said ------------------------------------------------------------------------------------------------

    def ready(self, body: dict[str, Any]) -> None:
        self._write(link.READY, body)

    def commit(self, number: int) -> None:
        """Report that all pages up to this one are in the sinks."""
        reached: Offer | None = None
        while self.waiting and self.waiting[0].number <= number:
            reached = self.waiting.popleft()
        if reached is not None:
            last = reached.last
            self._write(link.COMMITTED, {"upto": reached.upto, "sequence": str(last.sequence), "sub": last.sub})

    def fail(self, reason: str, status: int = 1) -> None:
        self._write(link.FAILED, {"reason": self._fit(reason), "status": status})
        self.close()

    def said(self, text: str) -> bool:
        """Pass lines to the child's standard error; False if it cannot take them."""
        if self.closed or self._transport is None or self._transport.get_write_buffer_size() > SAID_BACKLOG_BYTES:
            return False
        self._write(link.SAID, {"text": text})
        return True

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def _write(self, kind: int, body: dict[str, Any]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(link.encode(kind, body))


def checkpoint_of(head: dict[str, Any]) -> RecordPosition | None:
    """Return the position of the last record that was checkpointed; None if the shard is read from a place that is no
    record's, such as TRIM_HORIZON or LATEST."""
    sequence, sub = head.get("sequence"), head.get("sub")
    try:
        return RecordPosition(int(str(sequence)), int(sub or 0))
    except ValueError:
        return None
