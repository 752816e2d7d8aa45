"""`RecordView`: a record of a stream as commands show it, to people as text and to programs as plain values. Pure.

The data of a producer is not trusted. The size of a payload that is opened is bounded, and control characters are never
printed.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mld.properties.printable import printable, printable_lines

OPENED_BYTES_MAX = 16 << 20
HEX_BYTES_MAX = 1_024
TEXT_CHARS_MAX = 100_000
JSON_DEPTH_MAX = 100
"""Deeper JSON counts as text: each level is indented by two spaces more, so that laying out 60,000 levels takes minutes
and gigabytes. Without a bound it depends on Python which depth is read."""
HEX_COLUMNS = 16
GZIP_MAGIC = b"\x1f\x8b"
_ALLOWED_CONTROLS = "\n\t\r"


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Payload:
    """The data of a record, decompressed if possible."""

    data: bytes
    opened: tuple[str, ...] = ()
    """The formats that were opened, such as gzip."""
    note: str = ""
    """Why the data could not be opened; empty if it was opened, or has no known format."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """One user record."""

    sequence: str
    sub: int
    """Number of the user record within its KPL aggregate."""
    partition_key: str
    arrived_ms: int
    size: int
    payload: Payload


def open_payload(data: bytes) -> Payload:
    """Return the payload, decompressed if it is gzip. Gzip that is damaged, cut off or too large is left as it is, and
    a note says so.
    """
    if not data.startswith(GZIP_MAGIC):
        return Payload(data)
    opening = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16 selects the format of gzip
    try:
        found = opening.decompress(data, OPENED_BYTES_MAX)
    except zlib.error as error:
        return Payload(data, note=f"looks like gzip, but cannot be opened: {error}")
    if not opening.unconsumed_tail and opening.eof:
        return Payload(found, ("gzip",))
    is_long = len(found) >= OPENED_BYTES_MAX
    return Payload(
        data, note=f"gzip of more than {OPENED_BYTES_MAX >> 20} MiB is not opened" if is_long else "gzip, cut off"
    )


# --- for people -------------------------------------------------------------------------------------------------------


def headline(record: RecordView) -> str:
    """Return one line with the record's position, arrival time, partition key and size."""
    sub = f"/{record.sub}" if record.sub else ""
    opened = f" [{' '.join(record.payload.opened)}]" if record.payload.opened else ""
    note = f" ({record.payload.note})" if record.payload.note else ""
    at = _time(record.arrived_ms)
    key = printable(record.partition_key)
    return f"{record.sequence}{sub}  {at}  key={key}  {record.size} bytes{opened}{note}"


def body(payload: Payload) -> str:
    """Return the payload as readable text, cut off if it is long."""
    kind, value = read(payload.data)
    if kind == "json":
        return _cut(printable_lines(json.dumps(value, indent=2, ensure_ascii=False)))
    if kind == "text":
        return _cut(printable_lines(value))
    return hex_dump(payload.data)


def _cut(text: str) -> str:
    """Return the beginning of a long text, and how much more there is."""
    more = len(text) - TEXT_CHARS_MAX
    return text if more <= 0 else f"{text[:TEXT_CHARS_MAX]}\n… {more} characters more"


def read(data: bytes) -> tuple[str, Any]:
    """Return the kind of a payload (`json`, `text` or `bytes`) and its value: the parsed JSON, a string, or the
    bytes. JSON nested deeper than JSON_DEPTH_MAX counts as text.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes", data
    if text.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            if not _is_deep(value):
                return "json", value
    is_text = all(character.isprintable() or character in _ALLOWED_CONTROLS for character in text[:TEXT_CHARS_MAX])
    return ("text", text) if is_text else ("bytes", data)


def _is_deep(value: Any) -> bool:
    """Return whether a JSON value is nested deeper than JSON_DEPTH_MAX."""
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for values in inner for one in values]
        if not level:
            return False
    return True


def hex_dump(data: bytes) -> str:
    """Return a hex dump. Each line has an offset, 16 bytes, and those of them that are printable, as text."""
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), HEX_COLUMNS):
        part = data[start : min(start + HEX_COLUMNS, HEX_BYTES_MAX)]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * HEX_COLUMNS}} {readable}")
    if len(data) > HEX_BYTES_MAX:
        lines.append(f"… {len(data) - HEX_BYTES_MAX} bytes more")
    return "\n".join(lines)


def _time(epoch_ms: int) -> str:
    """Return a time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- for machines -----------------------------------------------------------------------------------------------------


def record_value(shard_id: str, record: RecordView) -> dict[str, Any]:
    """Return one record in plain values. The field of the payload is called `json`, `text` or `base64`."""
    kind, value = read(record.payload.data)
    return {
        "shardId": shard_id,
        "sequenceNumber": record.sequence,
        "subSequenceNumber": record.sub,
        "partitionKey": record.partition_key,
        "approximateArrivalTimestamp": _time(record.arrived_ms),
        "bytes": record.size,
        "opened": list(record.payload.opened),
        "note": record.payload.note,
        **({kind: value} if kind != "bytes" else {"base64": base64.b64encode(value).decode("ascii")}),
    }


def view_of(fields: Mapping[str, Any]) -> RecordView:
    """Return the view of a record from the fields that a child gets (`processRecords`)."""
    data = base64.b64decode(fields["data"])
    return RecordView(
        sequence=fields["sequenceNumber"],
        sub=fields["subSequenceNumber"],
        partition_key=fields["partitionKey"],
        arrived_ms=fields["approximateArrivalTimestamp"],
        size=len(data),
        payload=open_payload(data),
    )
