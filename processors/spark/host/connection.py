"""The host's end of the connection to one child: takes the child's frames (`link`), and sends frames to the child.

The child says HELLO and gets READY. Before a line of records it asks for ROOM, and waits for GO, unless the line is a
small addition to its page. It reports the page by PAGE when it is large, or when the host has sent CUT because a
micro-batch begins. The host reports by COMMITTED up to which line all records are in the sinks, or by FAILED why the
shard stops. FLUSH asks for a commit before the regular time, ENDED for a note in the sinks that the shard has ended.
SAID has lines for the daemon's log, and BYE ends the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from mld.processors.spark import fatal, link
from mld.processors.spark.batch.micro_batch import Offer
from mld.processors.spark.high_water_marks import ENDED, HighWaterMarks
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sanitizing import Sanitizer

if TYPE_CHECKING:
    from mld.processors.spark.host.session_host import SessionHost

TRIM_HORIZON = "TRIM_HORIZON"
"""The checkpoint of a shard that is read from its first record."""
SAID_BACKLOG_BYTES = 256 * 1024
"""If more bytes than this wait to be sent to a child, the child does not read. Then it is sent no more lines for its
standard error."""


class ChildConnection:
    """The connection to one child."""

    def __init__(self, host: SessionHost, number: int, writer: asyncio.StreamWriter, fit: Sanitizer) -> None:
        self._host = host
        self._writer = writer
        self._fit = fit
        self.number = number
        self.shard: StreamShard | None = None
        self.before: HighWaterMarks = {}
        """The marks that a sink must have before it may take the next page. For the first page these are the shard's
        checkpoint and the ends of its parent shards, later the end of the page before."""
        self.is_ending = False
        """Whether the child waits until all sinks have recorded the end of its shard."""
        self.waiting: deque[Offer] = deque()
        """Complete pages that are not committed yet."""
        self.open_bytes = 0
        """Bytes of lines in the page that the child is still writing."""
        self.open_since = 0.0
        """When the first of these lines came, in monotonic seconds."""
        self.is_cutting = False
        """Whether CUT was sent and the child has not answered yet."""
        self.asked_bytes = 0
        """Size of the line with which the child waits for room."""
        self.behind_ms: int | None = None
        """How far the child's last line is behind the tip of the shard; None if unknown."""
        self.closed = False

    # --- what arrives ------------------------------------------------------------------------------------------------

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take frames until one side closes the connection."""
        try:
            while True:
                kind, length = link.decode_header(await reader.readexactly(link.HEADER.size))
                body = await reader.readexactly(length)
                if self.closed:
                    return
                self._take(kind, link.decode_body(body))
        except (asyncio.IncompleteReadError, OSError):
            return
        except (link.LinkError, KeyError, TypeError, ValueError) as error:
            self.fail(f"the child and the session host do not understand each other: {error!r}")
        finally:
            self.close()

    def _take(self, kind: int, body: dict[str, Any]) -> None:
        """Take one frame of the child, and act on it. Raises LinkError, KeyError, TypeError and ValueError if it is
        malformed."""
        match kind:
            case link.HELLO:
                self._host.hello(self, body)
            case link.ROOM:
                self._count_unasked(body)
                self.asked_bytes = int(body["size"])
                self._host.offers.admit(self)
            case link.PAGE:
                self.is_cutting = False
                self._count_unasked(body)
                self._host.offers.paged(self._page(body) if body["records"] else None)
            case link.FLUSH:
                if self.waiting_since is not None:
                    self._host.offers.ask()
            case link.ENDED:
                self.is_ending = True
                self._host.offers.ask()
            case link.BYE:
                self.close()
            case _:
                raise link.LinkError(f"a child does not say {kind}")

    def _count_unasked(self, body: dict[str, Any]) -> None:
        """Count the bytes of small lines that the child has added to its open page without asking for room."""
        unasked, self.behind_ms = int(body["unasked"]), body["behind"]
        self.open_bytes += unasked
        self._host.offers.count(unasked)

    def _page(self, body: dict[str, Any]) -> Offer:
        """Return the page that the child reports as complete, as an offer that waits for its commit. From now on, the
        connection's `before` and `open_...` are about the child's next page."""
        assert self.shard is not None
        first, last = (RecordPosition(int(sequence), int(sub)) for sequence, sub in (body["first"], body["last"]))
        number, records, size, upto = (int(body[name]) for name in ("number", "records", "size", "upto"))
        page = Offer(self.number, number, self.shard, first, last, records, size, self.open_since, self.before, upto)
        self.before = {self.shard: last}
        self.open_bytes -= page.size
        self.open_since = time.monotonic()
        self.waiting.append(page)
        return page

    @property
    def waiting_since(self) -> float | None:
        """When the oldest record that is not committed came, in monotonic seconds; None if all are committed."""
        if self.waiting:
            return self.waiting[0].arrived_at
        return self.open_since if self.open_bytes else None

    # --- what is sent ------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Allow the child to put the line with which it waits into its page."""
        if not self.open_bytes:
            self.open_since = time.monotonic()
        self.open_bytes += self.asked_bytes
        self.send(link.GO, {})

    def cut(self) -> None:
        """Ask the child to complete its page."""
        self.is_cutting = True
        self.send(link.CUT, {})

    def commit(self, number: int) -> None:
        """Tell the child that all its pages up to page `number` are in the sinks, and forget these pages. Say nothing
        if none of them was waiting.
        """
        reached: Offer | None = None
        while self.waiting and self.waiting[0].number <= number:
            reached = self.waiting.popleft()
        if reached is not None:
            last = reached.last
            self.send(link.COMMITTED, {"upto": reached.upto, "sequence": str(last.sequence), "sub": last.sub})

    def fail(self, reason: str, status: int = fatal.EXIT_FAILURE) -> None:
        """Tell the child to end with this reason and exit status, and close the connection."""
        self.send(link.FAILED, {"reason": self._fit(reason), "status": status})
        self.close()

    def send_printed(self, text: str) -> bool:
        """Send lines that the child writes to its standard error. Return False if the child cannot take them now."""
        if self.closed or self._writer.transport.get_write_buffer_size() > SAID_BACKLOG_BYTES:
            return False
        self.send(link.SAID, {"text": text})
        return True

    def close(self) -> None:
        """Close the connection, and have the host drop everything that the child has offered."""
        if not self.closed:
            self.closed = True
            self._writer.close()
            self._host.gone(self)

    def send(self, kind: int, body: dict[str, Any]) -> None:
        """Send a frame to the child, unless the connection is closed."""
        if not self.closed:
            self._writer.write(link.encode(kind, body))


def before_of(head: dict[str, Any], shard: StreamShard) -> HighWaterMarks:
    """Return the marks that a sink must have before a child's first record: the shard's checkpoint, and the ends of the
    parent shards. `head` is the body of the child's HELLO.

    If the shard starts at TRIM_HORIZON, only the parents' ends are needed; at LATEST or at a time, nothing."""
    sequence, sub = head.get("sequence"), head.get("sub")
    ancestors = dict.fromkeys((shard._replace(shard=str(one)) for one in head.get("ancestors", ())), ENDED)
    try:
        return {**ancestors, shard: RecordPosition(int(str(sequence)), int(sub or 0))}
    except ValueError:
        return ancestors if sequence == TRIM_HORIZON else {}
