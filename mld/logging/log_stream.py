"""A stream whose writers never wait: a pipe holds 64 KiB, and once its reader stops, a write to it blocks for ever.

So a thread writes the log: the one thread outside `mld.aws`. It has nothing but bytes, and counts what was dropped.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
from collections import deque

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 8 * 1024 * 1024
"""A minute of a busy log at level DEBUG; what comes while so much waits is dropped and counted."""


class QueuedStream(io.TextIOBase):
    """A stream whose `write` returns at once; a thread writes to `descriptor`, and what it has no room for is dropped.

    The reader hears how many lines it missed as soon as it has read the others. Whatever the encoding, no line is lost.
    """

    dropped_total = 0
    """By all streams of this process."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._descriptor

    def write(self, text: str) -> int:
        """Queue a line."""
        line = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if self._lines and self._queued_bytes + len(line) > QUEUED_BYTES_MAX:
                self._dropped += 1
                QueuedStream.dropped_total += 1
                return len(text)
            self._lines.append(line)
            self._queued_bytes += len(line)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_forever, name="mld-log", daemon=True)
                self._thread.start()
        return len(text)

    def drain(self, within_s: float) -> None:
        """Wait until everything is written, but no longer than this."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._dropped, within_s)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            self._send(line)
            with self._changed:
                self._lines.popleft()
                self._queued_bytes -= len(line)
                missed = 0 if self._lines else self._dropped
            if missed:
                about = {"action": "log_dropped", "count": missed}
                log.warning("%d lines of the log are missing here: nobody read it for too long", missed, extra=about)
            with self._changed:
                self._dropped -= missed
                self._changed.notify_all()

    def _send(self, line: bytes) -> None:
        """Write all of it; a reader that is gone misses it, as it would without a queue."""
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # somebody who shares the pipe has made it so
                select.select([], [self._descriptor], [])
            except OSError:
                QueuedStream.dropped_total += 1
                return
