"""`LineSplitter`: splits the bytes of a child's output into lines.

Rules: protocol#line-framing. LF, CR LF and a single CR end a line. Text is UTF-8; invalid bytes are replaced. A last
line without a line end counts as a line. The work is linear in the number of bytes, however they are divided into
pieces. Nothing here does I/O.
"""

from __future__ import annotations

LINE_BYTES_MAX = 1024 * 1024
"""Longest line that is kept; messages of a child have about 100 bytes. A longer line is cut off. If it begins with a
message, the message is still found; a message that was cut off is invalid JSON, and so ignored."""


class LineSplitter:
    """Takes bytes and returns lines. `buffered_bytes` tells how much of an unfinished line is kept."""

    __slots__ = ("_after_cr", "_line_bytes_max", "_pending")

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._pending = bytearray()  # the unfinished line
        self._after_cr = False  # whether the last byte was a CR, so that a LF which follows belongs to it

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished line."""
        return len(self._pending)

    def beginning(self, bytes_max: int) -> str:
        """Return the beginning of the unfinished line, at most `bytes_max` bytes of it."""
        return self._pending[:bytes_max].decode("utf-8", "replace")

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that these bytes complete, without line ends.

        A CR at the end of `data` ends a line at once. If the next data begins with LF, this LF belongs to that CR, and
        is dropped.
        """
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        first, *rest = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._keep(first)
        if not rest:
            return []
        lines = [self._take()]
        *whole, last = rest
        lines.extend(line[: self._line_bytes_max].decode("utf-8", "replace") for line in whole)
        self._keep(last)
        return lines

    def eof(self) -> list[str]:
        """Return the last line if it has no line end."""
        return [self._take()] if self._pending else []

    def _keep(self, part: bytes) -> None:
        """Add bytes to the unfinished line; what exceeds the limit is dropped."""
        room = self._line_bytes_max - len(self._pending)
        self._pending += part[: max(room, 0)]

    def _take(self) -> str:
        """Return the unfinished line as text, and begin a new one."""
        line = self._pending.decode("utf-8", "replace")
        self._pending = bytearray()
        return line
