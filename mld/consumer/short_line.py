"""`ShortLine`: shortens a line of the child protocol for people who watch the exchange. Pure.

It keeps the first records of the line, and the beginning of each payload. A `processRecords` line comes in pieces and
may have many megabytes; each piece is scanned once, and the memory is bounded. The result is valid JSON again. The text
that begins a record (`_HEAD`) cannot occur inside a JSON string, because quotes are escaped there.
"""

from __future__ import annotations

RECORDS_SHOWN = 3
PAYLOAD_CHARACTERS_SHOWN = 48
LINE_CHARACTERS_MAX = 8_000  # of the shortened line
_HEAD = b'{"data":"'  # begins a record; its payload follows
_RECORD_END = b'"action":"record"}'
_TAIL_BYTES = 256  # longer than the end of a line after its last record


class ShortLine:
    """Shortens one line: feed its pieces, then take its `text`."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the whole line."""
        self.records = 0
        self._shown = bytearray()
        self._rest = b""
        self._payload_bytes: int | None = None
        """How many bytes of the present payload were fed so far; None between payloads."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece of the line: keep what is shown of it, and count its records.

        Until enough records are shown, two texts are looked for alternately: the one that begins a record (`_HEAD`),
        and the quote that ends its payload. Then heads are only counted. The end of the piece may be the beginning of a
        head, so it is kept in `_rest` and joined to the next piece.
        """
        self.size += len(piece)
        rest = self._rest + piece
        while self.records <= RECORDS_SHOWN:
            before, mark, after = rest.partition(_HEAD if self._payload_bytes is None else b'"')
            if not mark:
                break
            rest = after
            if self._payload_bytes is None:
                self.records += 1
                self._show(before)
                if self.records <= RECORDS_SHOWN:
                    self._show(mark)
                    self._payload_bytes = 0
            else:
                more = self._pass_payload(before) - PAYLOAD_CHARACTERS_SHOWN
                self._show((f"… {more} more" if more > 0 else "").encode() + mark)
                self._payload_bytes = None
        if self.records > RECORDS_SHOWN:
            self.records += rest.count(_HEAD)
            self._rest = rest.rpartition(_HEAD)[2][-_TAIL_BYTES:]  # for `text`, and as the beginning of a next head
        elif self._payload_bytes is not None:
            self._pass_payload(rest)
            self._rest = b""
        else:
            certain = max(0, len(rest) - len(_HEAD) + 1)  # the next piece may complete a head
            self._show(rest[:certain])
            self._rest = rest[certain:]

    def text(self) -> str:
        """Return the shortened line, without its line end. Records that are not shown are replaced by their number."""
        if self.records > RECORDS_SHOWN:
            left_out = self.records - RECORDS_SHOWN
            _, record_end, tail = self._rest.rpartition(_RECORD_END)
            end = f'"… {left_out} more record{"s" * (left_out > 1)}"'.encode() + (tail if record_end else b"")
        else:
            end = self._rest
        text = (self._shown + end).decode("utf-8", "replace").rstrip("\n")
        return text if len(text) <= LINE_CHARACTERS_MAX else f"{text[:LINE_CHARACTERS_MAX]}…"

    def _pass_payload(self, part: bytes) -> int:
        """Keep the bytes of this part that belong to the shown beginning of the payload. Return how many bytes of the
        payload were fed so far.
        """
        fed_before = self._payload_bytes or 0
        self._shown += part[: max(0, PAYLOAD_CHARACTERS_SHOWN - fed_before)]
        self._payload_bytes = fed_before + len(part)
        return self._payload_bytes

    def _show(self, part: bytes) -> None:
        """Append a part to the shown text. One character more than the limit is kept, by which `text` sees that it has
        to cut.
        """
        self._shown += part[: max(0, LINE_CHARACTERS_MAX + 1 - len(self._shown))]
