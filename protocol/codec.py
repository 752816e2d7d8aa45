"""Encodes the lines that the daemon sends to a child: actions, records and replies.

Rules: protocol#json-form, protocol#actions-of-the-daemon. JSON is compact, in the key order of the Java daemon, and
with ASCII escapes, so that no locale on either side can damage it. Nothing here does I/O.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping
from json.encoder import encode_basestring_ascii as quote

from mld.protocol.messages import (
    CheckpointErrorName,
    CheckpointRequest,
    Dialect,
    Initialize,
    LeaseLost,
    Record,
    ShardEnded,
    ShutdownReason,
    ShutdownRequested,
    StreamLabel,
)

PIECE_BYTES = 128 * 1024
"""Size of a piece of a line. Making a piece takes well under 2 ms, and a piece fits into the processor's cache."""
SLICE_DATA_BYTES = 96 * 1024
"""Larger payloads are encoded in slices of this size. It is a multiple of 3, so that no slice but the last ends in
padding."""
_RECORD_HEAD = b'{"data":"'
RECORD_END = b',"action":"record"}'
"""The end of each record, which is also the end of the last text in RECORD_FRAME. Keys made by `record_keys` come
before it."""
_RECORD_TAIL = (
    b'","partitionKey":%b,"sequenceNumber":"%b","approximateArrivalTimestamp":%b,"subSequenceNumber":%d%b' + RECORD_END
)
_RECORD = _RECORD_HEAD + b"%b" + _RECORD_TAIL
RECORDS_HEAD = b'{"action":"processRecords","records":['
RECORD_FRAME = (_RECORD_HEAD, *_RECORD_TAIL.replace(b"%d%b", b"0").split(b"%b"))
"""The texts between the fields of a record that is not in an aggregate. The fields are its data (base64), its partition
key (JSON text), its sequence number and its arrival time (digits)."""


def encode_action(action: Initialize | LeaseLost | ShardEnded | ShutdownRequested, dialect: Dialect) -> bytes:
    """Return the line of any action except `processRecords`, newline included."""
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
    """Yield the `processRecords` line in pieces of about PIECE_BYTES, newline included. Each step does bounded work."""
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
    """Return the end of a `processRecords` line after its records, newline included."""
    return b'],"millisBehindLatest":%b}\n' % _number(millis_behind_latest).encode()


def encode_record(
    data: bytes | bytearray | memoryview, key: bytes, sequence: bytes, arrival_ms: bytes, sub: int, extra: bytes = b""
) -> bytes:
    """Return one element of `records`. `key` is JSON text; `sequence` and `arrival_ms` are ASCII digits; `sub` is the
    index within a KPL aggregate; `extra` is made by `record_keys`.
    """
    return _RECORD % (b2a_base64(data, newline=False), key, sequence, arrival_ms, sub, extra)


def encode_large_record(
    data: bytes | bytearray | memoryview, key: bytes, sequence: bytes, arrival_ms: bytes, sub: int, extra: bytes = b""
) -> Iterator[bytes]:
    """Yield one element of `records` in slices, for payloads larger than SLICE_DATA_BYTES; see `encode_record`."""
    yield _RECORD_HEAD
    view = memoryview(data)
    for start in range(0, len(view), SLICE_DATA_BYTES):
        yield b2a_base64(view[start : start + SLICE_DATA_BYTES], newline=False)
    yield _RECORD_TAIL % (key, sequence, arrival_ms, sub, extra)


def record_keys(keys: Mapping[str, str]) -> bytes:
    """Return the JSON text of additional keys, which a record has after the usual ones. Their values are plain texts,
    and children that do not know these keys ignore them.
    """
    return "".join(f",{quote(key)}:{quote(value)}" for key, value in keys.items()).encode()


def encode_checkpoint_reply(request: CheckpointRequest, error: CheckpointErrorName | None) -> bytes:
    """Return the reply to a checkpoint request, newline included. `error` is None if the position was stored.

    The reply repeats the position. If the child sent the position under the 1.x key, the reply has it under that key,
    too.
    """
    name = "null" if error is None else quote(error.value)
    if request.legacy_key:
        return _line(f'{{"action":"checkpoint","checkpoint":{_text(request.sequence_number)},"error":{name}}}')
    return _line(
        f'{{"action":"checkpoint","sequenceNumber":{_text(request.sequence_number)},'
        f'"subSequenceNumber":{_number(request.sub_sequence_number)},"error":{name}}}'
    )


def _stream_keys(stream: StreamLabel | None) -> str:
    """Return the JSON text of three keys that name the stream. They are not one object, because existing children
    refuse objects (protocol#keys-of-several-streams).
    """
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
