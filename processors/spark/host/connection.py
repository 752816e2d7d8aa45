"""The host's end of a link: what a child brings, and what it hears of it.

Offers wait before room is asked for while their shard is ahead of others (`mld.spark.alignMillis`).

Streaming queries have one watermark for all shards, and it follows the newest event. After an outage shards catch up at
different speeds, and what a slow one brings would come later than the watermark of a fast one. So what a shard offers
waits in its child until the slowest other one is near; the time is that of arrival in Kinesis, which is known without
decoding. Children cut what they offer into pieces of at most half of the distance allowed.

A shard that is at its tip, has brought nothing for a while, or has ended holds nobody back. The one that is furthest
behind may always go on, so somebody always may. What waits takes no room from `mld.spark.maxInFlightBytes`.

Times of arrival are in milliseconds since 1970, `now` is monotonic, in seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

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
                self._host.asked(self, _span(body))
            case link.PAGE:
                self.is_cutting = False
                self._host.paged(self, self._page(body) if body["records"] else None)
            case link.FLUSH:
                self._host.flush(self, shuts_down=body.get("why") == link.SHUTDOWN)
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
            time.monotonic(),
            self.reached,
            dict(body["versions"]),
            int(body["upto"]),
        )
        self.reached = last
        self.open_bytes -= page.size
        self.waiting.append(page)
        return page

    def go_on(self) -> None:
        """Go on, as there is room for the line that the child waits with."""
        if not self.open_bytes:
            self.open_since = time.monotonic()
        self.open_bytes += self.asked_bytes
        self._host.brought(self, self.asked_bytes, self._behind)
        self._write(link.GO, {"near": self._host.is_near()})

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


def _span(body: dict[str, Any]) -> ArrivalSpan | None:
    return ArrivalSpan(int(body["first"]), int(body["last"])) if "first" in body else None


Shard = TypeVar("Shard")


class ArrivalSpan(NamedTuple):
    """When the records of an offer arrived, in milliseconds since 1970: the first and the last of them."""

    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class ShardFeed:
    """What is known of a shard.

    `fed_ms`: arrival of the newest record that was let in. `waiting`: what it offers and may not bring yet. `is_busy`:
    what was let in is on its way. `at_tip`: its last batch was at the tip. `heard_at`: when it last did anything."""

    heard_at: float
    fed_ms: int | None = None
    waiting: ArrivalSpan | None = None
    is_busy: bool = False
    at_tip: bool = False


def earliest_to_come(feed: ShardFeed, now: float, idle_s: float) -> int | None:
    """Return the arrival before which no record is likely to come from a shard; None if it holds nobody back."""
    reached = feed.fed_ms or 0
    if feed.waiting is not None:
        return max(reached, feed.waiting.first_ms)
    if feed.is_busy:
        return reached
    return None if feed.at_tip or now - feed.heard_at >= idle_s else reached


def may_feed(shard: Shard, feeds: Mapping[Shard, ShardFeed], align_ms: int, now: float, idle_s: float) -> bool:
    """Return whether what a shard offers may be let in: it ends near the slowest other shard, or the shard is the
    slowest.
    """
    mine = feeds[shard].waiting
    assert mine is not None
    others = [
        earliest
        for one, feed in feeds.items()
        if one != shard and (earliest := earliest_to_come(feed, now, idle_s)) is not None
    ]
    slowest = min(others, default=None)
    return slowest is None or mine.last_ms <= slowest + align_ms or mine.first_ms <= slowest


log = logging.getLogger("mld.spark")

IDLE_S = 30.0
"""A shard that has brought nothing for so long, for whatever reason, holds nobody back: longer than it takes the daemon
to read a page, pauses for throttling included."""
LOOK_S = 1.0
"""How often to look at what waits: shards become idle without a word."""
LET_ALL_S = 5.0
"""When a child is asked to end, all that wait are let in for so long: they hear of the end only after an answer."""
SAY_S = 60.0
"""How often the log says who waits for whom."""


class AlignedIntake:
    """Called on the host's loop only. `admit` asks for room, as `OfferQueue.admit`."""

    def __init__(
        self,
        align_ms: int,
        admit: Callable[[ChildConnection], None],
        *,
        idle_s: float = IDLE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._align_ms = align_ms
        self._admit = admit
        self._idle_s = idle_s
        self._monotonic = monotonic
        self._feeds: dict[StreamShard, ShardFeed] = {}
        self._owners: dict[StreamShard, ChildConnection] = {}
        self._let_all_until = self._say_at = -1e9
        self._timer: asyncio.Handle | None = None

    def joined(self, child: ChildConnection) -> None:
        """Note that a child of a shard will offer soon; it takes over from one before."""
        if self._align_ms and child.shard is not None:
            self._owners[child.shard] = child
            self._feeds[child.shard] = ShardFeed(self._monotonic())

    def admit(self, child: ChildConnection, span: ArrivalSpan | None) -> None:
        """Let the child go on with a line once its shard may, and there is room."""
        shard = child.shard
        if shard is None or span is None or self._owners.get(shard) is not child:
            self._admit(child)
            return
        self._feeds[shard] = replace(self._feeds[shard], waiting=span, heard_at=self._monotonic(), at_tip=False)
        self._look_soon()
        if self._may(shard):
            self._let_in(shard, span)
            self._admit(child)
        else:
            self._say(shard)

    def brought(self, shard: StreamShard, millis_behind_latest: int | None) -> None:
        """Note that what was let in has come."""
        if shard in self._feeds:
            feed, at_tip = self._feeds[shard], millis_behind_latest == 0
            self._feeds[shard] = replace(feed, is_busy=False, at_tip=at_tip, heard_at=self._monotonic())
            self._look_soon()

    def gone(self, child: ChildConnection) -> None:
        """Note that the child of a shard is gone; another one may be there already."""
        if child.shard is not None and self._owners.get(child.shard) is child:
            del self._owners[child.shard]
            self._feeds.pop(child.shard, None)
            self._look_soon()

    def let_all(self) -> None:
        """Hold nobody for a moment."""
        self._let_all_until = self._monotonic() + LET_ALL_S
        self._look_soon()

    def _held(self) -> dict[StreamShard, ArrivalSpan]:
        return {shard: feed.waiting for shard, feed in self._feeds.items() if feed.waiting is not None}

    def _may(self, shard: StreamShard) -> bool:
        now = self._monotonic()
        return now < self._let_all_until or may_feed(shard, self._feeds, self._align_ms, now, self._idle_s)

    def _let_in(self, shard: StreamShard, span: ArrivalSpan) -> None:
        feed = self._feeds[shard]
        self._feeds[shard] = replace(feed, waiting=None, is_busy=True, fed_ms=max(feed.fed_ms or 0, span.last_ms))

    def _look_soon(self, delay_s: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held():
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._look_soon(LOOK_S)
        for shard, span in self._held().items():
            if self._may(shard):
                self._let_in(shard, span)
                self._admit(self._owners[shard])

    def _say(self, shard: StreamShard) -> None:
        now = self._monotonic()
        if now < self._say_at + SAY_S:
            return
        self._say_at = now
        span = self._feeds[shard].waiting
        others = {
            one: earliest
            for one, feed in self._feeds.items()
            if one != shard and (earliest := earliest_to_come(feed, now, self._idle_s)) is not None
        }
        slowest = min(others, key=others.__getitem__)
        ahead_s = (span.last_ms - others[slowest]) / 1000 if span is not None and others[slowest] else None
        log.info(
            "%s waits for %s, which %s (key mld.spark.alignMillis); %d of %d shards wait",
            shard.label,
            slowest.label,
            "has brought nothing yet" if ahead_s is None else f"is {ahead_s:.0f} s behind",
            len(self._held()),
            len(self._feeds),
        )
