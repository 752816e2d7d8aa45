"""The host's end of a link: frames off the socket without a copy, offers admitted when there is room for them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from pathlib import Path
from typing import Any, Protocol

from mld.processors.spark import link
from mld.processors.spark.batch.page_file import PageFile
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard
from mld.processors.spark.host.alignment import ArrivalSpan
from mld.processors.spark.sanitized import Sanitizer
from mld.properties.redaction import printable

SAID_BACKLOG_BYTES = 256 * 1024
"""A child that does not read gets no more lines for its standard error."""


class Intake(Protocol):
    """What a link needs of its host."""

    def hello(self, one: ChildConnection, head: dict[str, Any]) -> None: ...
    def admit(self, one: ChildConnection, size: int, span: ArrivalSpan | None) -> bool:
        """Return whether a body of this size may be read now; if not, `ChildConnection.go_on` is called once it may."""

    def place_of(self, one: ChildConnection, number: int) -> Path: ...
    def offered(self, one: ChildConnection, number: int, line: bytearray) -> None: ...
    def offered_page(self, one: ChildConnection, number: int, page: PageFile, size: int) -> None: ...
    def flush(self, one: ChildConnection, *, shuts_down: bool) -> None: ...
    def ended(self, one: ChildConnection) -> None: ...
    def gone(self, one: ChildConnection) -> None: ...


class ChildConnection(asyncio.BufferedProtocol):
    """One child. `waiting` are the offers accepted and not committed, with their last position (None: no
    records), and when each was accepted, on the monotonic clock."""

    def __init__(self, intake: Intake, number: int, fit: Sanitizer = printable) -> None:
        self._intake = intake
        self._fit = fit
        self.number = number
        self.shard: StreamShard | None = None
        self.reached: RecordPosition | None = None
        """What stands right before its next offer: its checkpoint, then the end of the offer before. None: unknown."""
        self.waiting: deque[tuple[int, RecordPosition | None, float]] = deque()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(link.HEADER.size)
        self._filled = 0
        self._header: link.Header | None = None
        self._head: dict[str, Any] | None = None
        self._held = False
        self.admitted_bytes = 0
        """Size of the body that is being read, or of the line that the child makes a page of."""
        self.page: int | None = None
        """The offer that the child wants to write, or writes, as a page."""
        self._page_bytes = 0
        self.closed = False

    # --- what arrives ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._intake.gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == len(self._buffer):
            try:
                self._complete()
            except (link.LinkError, KeyError, TypeError) as error:
                self.fail(f"the child and the session host do not understand each other: {error!r}")

    def _complete(self) -> None:
        """Take what was waited for: a header, a head or a body."""
        if self._header is None:
            self._header = link.decode_header(self._buffer)
            self._expect(self._header.head_bytes)
        elif self._head is None:
            self._head = link.decode_head(self._buffer)
            if self._header.body_bytes == 0:
                self._handle(bytearray())
            elif self.admitted_bytes or self._intake.admit(self, self._header.body_bytes, _span(self._head)):
                self._expect_body()
            else:
                assert self._transport is not None
                self._held = True
                self._transport.pause_reading()
        else:
            self._handle(self._buffer)

    def go_on(self) -> None:
        """Go on, as there is room for the body that was held back, or for a page."""
        assert self._held and self._transport is not None
        self._held = False
        if self.page is not None:
            self._let_write(self.page)
            return
        self._expect_body()
        self._transport.resume_reading()

    def _let_write(self, number: int) -> None:
        assert self.shard is not None
        self.admitted_bytes = self._page_bytes
        place = str(self._intake.place_of(self, number))
        self._write(link.GO, {"file": place, "stream": self.shard.stream_name, "shard": self.shard.shard})

    def _expect_body(self) -> None:
        assert self._header is not None
        self.admitted_bytes = self._header.body_bytes
        self._expect(self._header.body_bytes)

    def _expect(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._filled = 0

    def _handle(self, body: bytearray) -> None:
        header, head = self._header, self._head
        assert header is not None and head is not None
        self._header = self._head = None
        self._expect(link.HEADER.size)
        match header.kind:
            case link.HELLO:
                self._intake.hello(self, head)
            case link.ROOM:
                self.page, self._page_bytes = int(head["id"]), int(head["size"])
                if self._intake.admit(self, self._page_bytes, None):
                    self._let_write(self.page)
                else:
                    self._held = True
            case link.OFFER:
                size, self.admitted_bytes, self.page = self.admitted_bytes, 0, None
                if (page := head.get("page")) is None:
                    self._intake.offered(self, int(head["id"]), body)
                else:
                    self._intake.offered_page(self, int(head["id"]), _page(page), size)
            case link.FLUSH:
                self._intake.flush(self, shuts_down=head.get("why") == link.SHUTDOWN)
            case link.ENDED:
                self._intake.ended(self)
            case link.BYE:
                self.close()
            case _:
                raise link.LinkError(f"a child does not say {header.kind}")

    @property
    def waiting_since(self) -> float | None:
        """When the oldest offer that is not committed was accepted."""
        return self.waiting[0][2] if self.waiting else None

    # --- what is said ------------------------------------------------------------------------------------------------

    def ready(self, head: dict[str, Any]) -> None:
        self._write(link.READY, head)

    def accept(self, number: int, last: RecordPosition | None, *, near: bool) -> None:
        """Accept an offer: it is ours; without records it is committed with what is before it. `near`: the child may
        wait for the commit before it answers.
        """
        self._write(link.ACCEPTED, {"id": number, "near": near})
        self.waiting.append((number, last, time.monotonic()))
        if last is None:
            self._settle_empty()

    def commit(self, number: int) -> None:
        """Report that all offers up to this one are in the sinks."""
        position: RecordPosition | None = None
        reached = 0
        while self.waiting and self.waiting[0][0] <= number:
            reached, last, _ = self.waiting.popleft()
            position = last or position
        if reached:
            self._say_committed(reached, position)
        self._settle_empty()

    def _settle_empty(self) -> None:
        reached = 0
        while self.waiting and self.waiting[0][1] is None:
            reached = self.waiting.popleft()[0]
        if reached:
            self._say_committed(reached, None)

    def _say_committed(self, number: int, position: RecordPosition | None) -> None:
        sequence = None if position is None else str(position.sequence)
        self._write(link.COMMITTED, {"id": number, "sequence": sequence, "sub": position.sub if position else None})

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

    def _write(self, kind: int, head: dict[str, Any]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(link.encode(kind, head))


def checkpoint_of(head: dict[str, Any]) -> RecordPosition | None:
    """Return the position of the last record that was checkpointed; None if the shard is read from a place that is no
    record's, such as TRIM_HORIZON or LATEST."""
    sequence, sub = head.get("sequence"), head.get("sub")
    try:
        return RecordPosition(int(str(sequence)), int(sub or 0))
    except ValueError:
        return None


def _page(head: dict[str, Any]) -> PageFile:
    first, last = (RecordPosition(int(sequence), int(sub)) for sequence, sub in (head["first"], head["last"]))
    return PageFile(int(head["records"]), first, last, head["behind"])


def _span(head: dict[str, Any]) -> ArrivalSpan | None:
    return ArrivalSpan(int(head["first"]), int(head["last"])) if "first" in head else None
