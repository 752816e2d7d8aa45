r"""The daemon's half of the wire format: actions to bytes, bytes of a child's output to lines and messages.

Rules: protocol#json-form, protocol#actions-of-the-daemon, protocol#tolerated-lines, protocol#line-framing. JSON is
written compactly, in the key order of the Java daemon and with ASCII escapes, so that no locale on either side can
damage it. Nothing here does I/O, and parsing never raises: a child may print anything.

`\n`, `\r\n` and a lone `\r` end a line; text is UTF-8 with replacement of bad bytes; a last line without an end counts.
Work is linear in the bytes fed, however they are cut.

`Splitter` takes a `processRecords` line apart into its records as they were framed; `line_of` makes lines of some. The
search for a record that kills its processor needs it: whatever framed the batch, the child gets the same bytes for
a record, only in other batches. The separator cannot occur inside a text, where every quote is escaped.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from typing import NoReturn

from mld.protocol.messages import (
    ActionName,
    ActionStatus,
    CheckpointErrorName,
    CheckpointRequest,
    ChildMessage,
    Dialect,
    Ignored,
    Initialize,
    LeaseLost,
    Record,
    ShardEnded,
    ShutdownReason,
    ShutdownRequested,
    StreamLabel,
)

PIECE_BYTES = 128 * 1024
"""Size of a piece of a line: framing it takes well under 2 ms, and it stays in the processor's cache."""
SLICE_DATA_BYTES = 96 * 1024
"""Payloads above this are encoded slice by slice. A multiple of 3, so that base64 slices join without padding."""
CROWDED_CHARS = 16 * 1024
MEMBERS_MAX = 1000
"""Only CROWDED_CHARS of a longer line with more commas are parsed: a message has five members, and making values of
half a million would delay the daemon. A message followed by such noise is still a message."""
REASON_CHARS_MAX = 80
"""How much of a child's line is quoted in a reason."""
_INT64_MAX = 2**63 - 1
_INT_TEXT_CHARS_MAX = 20
"""An int64 has at most 19 digits and a sign; longer texts are not converted at all."""
_WHITESPACE = " \t\r\n\ufeff"
"""The mark that some systems write before UTF-8 included."""
_OTHER_ACTIONS = frozenset(action.value for action in ActionName) | {"shutdown", "record"}

_RECORD_HEAD = b'{"data":"'
RECORD_END = b',"action":"record"}'
"""With it ends the last text of RECORD_FRAME; the keys of `record_keys` stand before."""
_RECORD_TAIL = (
    b'","partitionKey":%b,"sequenceNumber":"%b","approximateArrivalTimestamp":%b,"subSequenceNumber":%d%b' + RECORD_END
)
_RECORD = _RECORD_HEAD + b"%b" + _RECORD_TAIL
RECORDS_HEAD = b'{"action":"processRecords","records":['
RECORD_FRAME = (_RECORD_HEAD, *_RECORD_TAIL.replace(b"%d%b", b"0").split(b"%b"))
"""The text around the columns of a record outside aggregates, which are base64, JSON text, digits, digits."""


# --- daemon to child -------------------------------------------------------------------------------------------------


def encode_action(action: Initialize | LeaseLost | ShardEnded | ShutdownRequested, dialect: Dialect) -> bytes:
    """Return the line of any action but `processRecords`, newline included."""
    match action:
        case Initialize(shard_id, sequence, sub, stream):
            return _line(
                f'{{"action":"initialize","shardId":{quote(shard_id)},'
                f'"sequenceNumber":{_text(sequence)},"subSequenceNumber":{_number(sub)}{_stream_keys(stream)}}}'
            )
        case LeaseLost() if dialect is Dialect.KCL_1:
            return _shutdown(ShutdownReason.ZOMBIE)
        case ShardEnded() if dialect is Dialect.KCL_1:
            return _shutdown(ShutdownReason.TERMINATE)
        case LeaseLost():
            return _line('{"action":"leaseLost"}')
        case ShardEnded():
            return _line('{"action":"shardEnded","checkpoint":"SHARD_END"}')
        case ShutdownRequested(checkpoint):
            return _line(f'{{"action":"shutdownRequested","checkpoint":{_text(checkpoint)}}}')


def encode_process_records(records: Iterable[Record], millis_behind_latest: int | None) -> Iterator[bytes]:
    """Yield the `processRecords` line in pieces of about PIECE_BYTES, newline included; each step does bounded work."""
    parts, size = [RECORDS_HEAD], 0
    for number, record in enumerate(records):
        key, sequence = quote(record.partition_key).encode(), record.sequence_number.encode()
        arrival_ms, extra = b"%d" % record.approximate_arrival_ms, record_keys(record.extra)
        parts.append(b"," if number else b"")
        for text in encode_large_record(record.data, key, sequence, arrival_ms, record.sub_sequence_number, extra):
            parts.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
    parts.append(records_tail(millis_behind_latest))
    yield b"".join(parts)


def records_tail(millis_behind_latest: int | None) -> bytes:
    """Return the end of a `processRecords` line, after its records, newline included."""
    return b'],"millisBehindLatest":%b}\n' % _number(millis_behind_latest).encode()


def encode_record(
    data: bytes | bytearray | memoryview, key: bytes, sequence: bytes, arrival_ms: bytes, sub: int, extra: bytes = b""
) -> bytes:
    """Return one element of `records`: payload, JSON text, digits, digits, number, and keys of `record_keys`."""
    return _RECORD % (b2a_base64(data, newline=False), key, sequence, arrival_ms, sub, extra)


def encode_large_record(
    data: bytes | bytearray | memoryview, key: bytes, sequence: bytes, arrival_ms: bytes, sub: int, extra: bytes = b""
) -> Iterator[bytes]:
    """Yield the same slice by slice, for a payload above SLICE_DATA_BYTES."""
    yield _RECORD_HEAD
    view = memoryview(data)
    for start in range(0, len(view), SLICE_DATA_BYTES):
        yield b2a_base64(view[start : start + SLICE_DATA_BYTES], newline=False)
    yield _RECORD_TAIL % (key, sequence, arrival_ms, sub, extra)


def record_keys(keys: Mapping[str, str]) -> bytes:
    """Return keys that every record of a stream has, besides the usual ones; flat, as children that know none accept
    them.
    """
    return "".join(f",{quote(key)}:{quote(value)}" for key, value in keys.items()).encode()


def encode_checkpoint_reply(request: CheckpointRequest, error: CheckpointErrorName | None) -> bytes:
    """Return the reply to a request, newline included; None says that the position is stored.

    The position is echoed, one that came under the 1.x key under that key, where the child looks for it.
    """
    name = "null" if error is None else quote(error.value)
    if request.legacy_key:
        return _line(f'{{"action":"checkpoint","checkpoint":{_text(request.sequence_number)},"error":{name}}}')
    return _line(
        f'{{"action":"checkpoint","sequenceNumber":{_text(request.sequence_number)},'
        f'"subSequenceNumber":{_number(request.sub_sequence_number)},"error":{name}}}'
    )


def _stream_keys(stream: StreamLabel | None) -> str:
    """Return flat keys, as existing children refuse an object (protocol#keys-of-several-streams)."""
    if stream is None:
        return ""
    return f',"streamName":{quote(stream.name)},"streamArn":{quote(stream.arn)},"streamId":{quote(stream.id)}'


def _shutdown(reason: ShutdownReason) -> bytes:
    return _line(f'{{"action":"shutdown","reason":"{reason.value}"}}')


def _line(text: str) -> bytes:
    return text.encode("ascii") + b"\n"


def _text(value: str | None) -> str:
    return "null" if value is None else quote(value)


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)


# --- child to daemon -------------------------------------------------------------------------------------------------


class _NumberText(str):
    """A JSON number as written, so that a sequence number keeps every digit."""

    __slots__ = ()


class _Unreadable(Exception):
    """A known message with a field that cannot mean what it must."""


def refuse_constant(text: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity, which Python's parser takes unless it is told not to."""
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_NumberText, parse_float=_NumberText, parse_constant=refuse_constant)


def parse_child_line(line: str, dialect: Dialect = Dialect.KCL_2) -> ChildMessage | Ignored:
    """Return what one line of a child's output means. Never raises.

    Kinder than Java where that is safe (protocol#tolerated-lines): extra keys are tolerated and `null` is harmless. Not
    where it is not: a checkpoint request without the key `sequenceNumber` but with others is refused, because taking it
    for "everything delivered so far" could checkpoint records the child has not finished.
    """
    if not line:
        return Ignored("an empty line", quiet=True)
    if len(line) > CROWDED_CHARS and line.count(",") > MEMBERS_MAX:
        line = line[:CROWDED_CHARS]
    start = len(line) - len(line.lstrip(_WHITESPACE))
    try:
        value, _ = _DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):
        return Ignored(f"not a JSON object: {shorten(line)}", is_log=not line.startswith("{", start))
    if type(value) is not dict:
        return Ignored(f"not a JSON object: {shorten(line)}", is_log=True)
    try:
        match value.get("action"):
            case "status":
                return ActionStatus(_coerce_text(value, "responseFor"))
            case "checkpoint":
                return _checkpoint_request(value, dialect)
            case str(action) if action in _OTHER_ACTIONS:
                return Ignored(f"only the daemon sends {action!r} messages")
            case _:
                return Ignored(f"no known action: {shorten(line)}", is_log="action" not in value)
    except _Unreadable as error:
        return Ignored(f"{error}: {shorten(line)}")


def _checkpoint_request(value: dict[str, object], dialect: Dialect) -> CheckpointRequest:
    sequence = _coerce_text(value, "sequenceNumber")
    sub = _coerce_integer(value, "subSequenceNumber")
    if sequence is None and value.get("checkpoint") is not None:
        if dialect is Dialect.KCL_1:
            return CheckpointRequest(_coerce_text(value, "checkpoint"), sub, legacy_key=True)
        raise _Unreadable("a position under the 1.x key 'checkpoint'; use 'sequenceNumber' or the 1.x protocol")
    legacy = dialect is Dialect.KCL_1 and "checkpoint" in value and "sequenceNumber" not in value
    unknown = value.keys() - {"action", "sequenceNumber", "subSequenceNumber", "error", "checkpoint"}
    if unknown and "sequenceNumber" not in value and not legacy:
        raise _Unreadable("a checkpoint request with unknown keys and without 'sequenceNumber'")
    return CheckpointRequest(sequence, sub, legacy_key=legacy)


def _coerce_text(value: dict[str, object], key: str) -> str | None:
    match value.get(key):
        case None:
            return None
        case bool(flag):
            return "true" if flag else "false"
        case str(text):
            return str(text)
        case _:
            raise _Unreadable(f"{key!r} is neither text nor null")


def _coerce_integer(value: dict[str, object], key: str) -> int | None:
    """Apply Jackson's rules for a nullable 64-bit integer (protocol#tolerated-lines)."""
    match value.get(key):
        case None:
            return None
        case _NumberText() as text:
            number = _truncate(text)
        case str(text) if not text.strip():
            return None
        case str(text):
            number = _whole(text.strip())
        case _:
            number = None
    if number is None or not -_INT64_MAX - 1 <= number <= _INT64_MAX:
        raise _Unreadable(f"{key!r} is not a 64-bit integer or null")
    return number


def _truncate(text: str) -> int | None:
    whole = _whole(text)
    if whole is not None:
        return whole
    number = float(text)
    return int(number) if abs(number) < _INT64_MAX else None


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-") if text.startswith("-") else text.removeprefix("+")
    if len(digits) >= _INT_TEXT_CHARS_MAX or not (digits.isascii() and digits.isdigit()):
        return None
    return int(text)


def shorten(line: str) -> str:
    """Return a line of a child, fit for a log: ASCII, quoted, short."""
    head = ascii(line[:REASON_CHARS_MAX])
    return head if len(line) <= REASON_CHARS_MAX else f"{head} and {len(line) - REASON_CHARS_MAX} characters more"


# --- lines of a child -------------------------------------------------------------------------------------------------

LINE_BYTES_MAX = 1024 * 1024
"""Memory bound of one line; messages of a child have some 100 bytes. A longer line is cut: a message followed by noise
is still a message, and a cut message is none."""


class LineSplitter:
    """Feed bytes, get lines. `buffered_bytes` lets the caller stop reading from a child that floods it."""

    __slots__ = ("_after_cr", "_line_bytes_max", "_pending")

    def __init__(self, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._line_bytes_max = line_bytes_max
        self._pending = bytearray()
        self._after_cr = False

    @property
    def buffered_bytes(self) -> int:
        """Size of the unfinished line so far."""
        return len(self._pending)

    def beginning(self, bytes_max: int) -> str:
        """Return how the unfinished line begins."""
        return self._pending[:bytes_max].decode("utf-8", "replace")

    def feed(self, data: bytes) -> list[str]:
        """Return the lines these bytes complete, without their ends."""
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
        """Return the last line, if it has no end."""
        return [self._take()] if self._pending else []

    def _keep(self, part: bytes) -> None:
        room = self._line_bytes_max - len(self._pending)
        self._pending += part[: max(room, 0)]

    def _take(self) -> str:
        line = self._pending.decode("utf-8", "replace")
        self._pending = bytearray()
        return line


_POSITION = re.compile(
    rb'"sequenceNumber":"([0-9]+)","approximateArrivalTimestamp":-?[0-9]+,"subSequenceNumber":(-?[0-9]+)'
    rb'(?:,"[A-Za-z]+":"(?:[^"\\]|\\.)*")*\Z'
)


@dataclass(frozen=True, slots=True)
class FramedRecord:
    """One element of `records`; `text` is its JSON."""

    sequence: str
    sub: int
    text: bytes

    def as_it_came(self) -> FramedRecord:
        """Return the record before anything was taken off it."""
        return self

    def fields(self) -> dict[str, object]:
        """Return the fields the child gets: data in base64, partitionKey, sequenceNumber, approximateArrivalTimestamp,
        …
        """
        fields: dict[str, object] = json.loads(self.text)
        return fields

    @property
    def data_bytes(self) -> int:
        """The size of the payload, from that of its base64."""
        start = len(b'{"data":"')
        end = self.text.index(b'"', start)
        return (end - start) // 4 * 3 - self.text.count(b"=", max(start, end - 2), end)


class Splitter:
    """Takes the pieces of one line and returns its records; each step handles one piece and one unfinished record."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_first = True

    def feed(self, piece: bytes) -> Iterator[FramedRecord]:
        """Yield the records that this piece completes."""
        *whole, self._rest = (self._rest + piece).split(RECORD_END)
        for text in whole:
            start = len(RECORDS_HEAD) if self._is_first else len(b",")
            self._is_first = False
            match = _POSITION.search(text)
            assert match is not None, "the line was framed by ourselves"
            yield FramedRecord(match[1].decode(), int(match[2]), text[start:] + RECORD_END)


def line_of(records: Sequence[FramedRecord], millis_behind_latest: int | None) -> Iterator[bytes]:
    """Yield a `processRecords` line of these records in pieces of about 128 KB, newline included."""
    parts, size = [RECORDS_HEAD], 0
    for number, record in enumerate(records):
        parts += (b",", record.text) if number else (record.text,)
        size += len(record.text)
        if size > PIECE_BYTES:
            yield from _pieces(b"".join(parts))
            parts, size = [], 0
    parts.append(records_tail(millis_behind_latest))
    yield b"".join(parts)


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]
