"""What a record looks like to people: compression opened, JSON laid out, text as text, anything else as hex. Pure.

What a producer sends is not trusted: opened payloads are bounded, and control characters are never printed as they are.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

OPENED_BYTES_MAX = 16 << 20
LAYERS_MAX = 3
HEX_BYTES_MAX = 1_024
TEXT_CHARS_MAX = 100_000
HEX_COLUMNS = 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZLIB_METHOD = 8
_ALLOWED_CONTROLS = "\n\t\r"


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes after opening; `opened` names what was opened, outermost first; `note` says what could not be."""

    data: bytes
    opened: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record. `sub` is its number within its aggregate; None for one that is shown as it is stored."""

    sequence: str
    sub: int | None
    partition_key: str
    arrived_ms: int
    size: int
    payload: Payload


def open_payload(data: bytes) -> Payload:
    """Open gzip, zlib and zstd, as far as this Python can, also inside one another."""
    opened: tuple[str, ...] = ()
    for _ in range(LAYERS_MAX):
        name = _compression(data)
        if name is None:
            break
        found = _decompressed(name, data)
        if isinstance(found, str):
            # Two bytes of plain data may look like the beginning of a zlib stream.
            return Payload(data, opened, "" if name == "zlib" else found)
        data, opened = found, (*opened, name)
    return Payload(data, opened)


def _compression(data: bytes) -> str | None:
    if data.startswith(GZIP_MAGIC):
        return "gzip"
    if data.startswith(ZSTD_MAGIC):
        return "zstd"
    is_zlib = (
        len(data) > 2 and data[0] & 15 == _ZLIB_METHOD and data[0] >> 4 <= 7 and (data[0] << 8 | data[1]) % 31 == 0
    )
    return "zlib" if is_zlib else None


def _decompressed(name: str, data: bytes) -> bytes | str:
    """Return what was compressed, or why it stays as it is."""
    if name == "zstd":
        return _unzstd(data)
    opening = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        found = opening.decompress(data, OPENED_BYTES_MAX)
    except zlib.error as error:
        return f"looks like {name}, but cannot be opened: {error}"
    if opening.unconsumed_tail or not opening.eof:
        more = len(found) >= OPENED_BYTES_MAX
        return f"{name} of more than {OPENED_BYTES_MAX >> 20} MiB is not opened" if more else f"{name}, cut off"
    return found


def _unzstd(data: bytes) -> bytes | str:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        return "zstd is opened by Python 3.14 and later only"
    try:
        found: bytes = zstd.ZstdDecompressor().decompress(data, OPENED_BYTES_MAX)
    except zstd.ZstdError as error:
        return f"looks like zstd, but cannot be opened: {error}"
    return found


# --- for people -------------------------------------------------------------------------------------------------------


def headline(record: RecordView) -> str:
    """Return where the record is, in one line."""
    sub = f"/{record.sub}" if record.sub else ""
    opened = f" [{' '.join(record.payload.opened)}]" if record.payload.opened else ""
    note = f" ({record.payload.note})" if record.payload.note else ""
    at = _time(record.arrived_ms)
    key = printable_text(record.partition_key, newlines=False)
    return f"{record.sequence}{sub}  {at}  key={key}  {record.size} bytes{opened}{note}"


def body(payload: Payload) -> str:
    """Return the payload as people read it; cut off where it is long."""
    kind, value = read(payload.data)
    if kind == "json":
        return _cut(printable_text(json.dumps(value, indent=2, ensure_ascii=False)))
    if kind == "text":
        return _cut(printable_text(value))
    return hex_dump(payload.data)


def _cut(text: str) -> str:
    more = len(text) - TEXT_CHARS_MAX
    return text if more <= 0 else f"{text[:TEXT_CHARS_MAX]}\n… {more} characters more"


def read(data: bytes) -> tuple[str, Any]:
    """Read a payload: (`json`, a value), (`text`, a string) or (`bytes`, as they are)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes", data
    if text.lstrip()[:1] in ("{", "["):
        try:
            return "json", json.loads(text)
        except (ValueError, RecursionError):
            pass
    is_text = all(character.isprintable() or character in _ALLOWED_CONTROLS for character in text[:TEXT_CHARS_MAX])
    return ("text", text) if is_text else ("bytes", data)


def printable_text(text: str, *, newlines: bool = True) -> str:
    """Return the text without what steers a terminal."""
    allowed = _ALLOWED_CONTROLS[:2] if newlines else ""
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in text)


def hex_dump(data: bytes) -> str:
    """Show offset, bytes and what of them can be read, 16 in a line."""
    lines = []
    for start in range(0, min(len(data), HEX_BYTES_MAX), HEX_COLUMNS):
        part = data[start : min(start + HEX_COLUMNS, HEX_BYTES_MAX)]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * HEX_COLUMNS}} {readable}")
    if len(data) > HEX_BYTES_MAX:
        lines.append(f"… {len(data) - HEX_BYTES_MAX} bytes more")
    return "\n".join(lines)


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- for machines -----------------------------------------------------------------------------------------------------


def record_value(shard_id: str, record: RecordView) -> dict[str, Any]:
    """Return one record in plain values; the payload is `json`, `text` or `base64`."""
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


def view_of(fields: Mapping[str, Any], *, is_raw: bool = False) -> RecordView:
    """Return a record as a child gets it (`processRecords`)."""
    data = base64.b64decode(fields["data"])
    return RecordView(
        sequence=fields["sequenceNumber"],
        sub=None if is_raw else fields["subSequenceNumber"],
        partition_key=fields["partitionKey"],
        arrived_ms=fields["approximateArrivalTimestamp"],
        size=len(data),
        payload=Payload(data) if is_raw else open_payload(data),
    )
