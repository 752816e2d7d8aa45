"""Shortens a line of the protocol for people who look at it: the first records, the beginnings of payloads. Pure.

A `processRecords` line comes in pieces and may have many megabytes; a step costs a look at one piece, and what is kept
is bounded. What comes out is JSON again. The text that begins a record cannot occur inside a JSON text, where every
quote is escaped.
"""

from __future__ import annotations

RECORDS_SHOWN = 3
PAYLOAD_CHARACTERS_SHOWN = 48
LINE_CHARACTERS_MAX = 8_000
_HEAD = b'{"data":"'
_RECORD_END = b'"action":"record"}'
_TAIL_BYTES = 256  # more than what follows the last record


class ShortLine:
    """Feed the pieces of one line, then take its `text`."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the whole line."""
        self.records = 0
        self._shown = bytearray()
        self._rest = b""
        self._payload_bytes: int | None = None
        """Seen of the payload that is open; None outside of payloads."""

    def feed(self, piece: bytes) -> None:
        self.size += len(piece)
        self._rest += piece
        while self._step():
            pass

    def text(self) -> str:
        """Return the line, without its end."""
        if self.records > RECORDS_SHOWN:
            left_out = self.records - RECORDS_SHOWN
            _, is_whole, tail = self._rest.rpartition(_RECORD_END)
            end = f'"… {left_out} more record{"s" * (left_out > 1)}"'.encode() + (tail if is_whole else b"")
        else:
            end = self._rest
        text = (self._shown + end).decode("utf-8", "replace").rstrip("\n")
        return text if len(text) <= LINE_CHARACTERS_MAX else f"{text[:LINE_CHARACTERS_MAX]}…"

    def _step(self) -> bool:
        """Take what is certain from the rest; whether there may be more."""
        if self.records > RECORDS_SHOWN:
            return self._count()
        if self._payload_bytes is not None:
            return self._pass_payload(self._payload_bytes)
        start = self._rest.find(_HEAD)
        if start < 0:
            kept = min(len(_HEAD) - 1, len(self._rest))  # a head may be cut in two
            self._show(self._rest[: len(self._rest) - kept])
            self._rest = self._rest[len(self._rest) - kept :]
            return False
        self.records += 1
        self._show(self._rest[:start])
        if self.records > RECORDS_SHOWN:
            self._rest = self._rest[start + len(_HEAD) :]
        else:
            self._show(_HEAD)
            self._rest = self._rest[start + len(_HEAD) :]
            self._payload_bytes = 0
        return True

    def _pass_payload(self, seen: int) -> bool:
        end = self._rest.find(b'"')
        part = self._rest if end < 0 else self._rest[:end]
        self._shown += part[: max(0, PAYLOAD_CHARACTERS_SHOWN - seen)]
        seen += len(part)
        self._rest = self._rest[len(part) :]
        if end < 0:
            self._payload_bytes = seen
            return False
        if seen > PAYLOAD_CHARACTERS_SHOWN:
            self._shown += f"… {seen - PAYLOAD_CHARACTERS_SHOWN} more".encode()
        self._payload_bytes = None
        return True

    def _count(self) -> bool:
        """Count the records that are left out, and keep what follows the last one."""
        self.records += self._rest.count(_HEAD)
        last = self._rest.rfind(_HEAD)
        kept = self._rest if last < 0 else self._rest[last + len(_HEAD) :]
        self._rest = kept[-_TAIL_BYTES:]
        return False

    def _show(self, part: bytes) -> None:
        self._shown += part[: max(0, LINE_CHARACTERS_MAX + 1 - len(self._shown))]
