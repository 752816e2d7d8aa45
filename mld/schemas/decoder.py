"""The frame of the Glue Schema Registry, and what makes a payload of what it frames: inflated, and JSON of Avro.

Rules: retrieval#schema-frames, retrieval#avro-as-json, retrieval#decoding-in-a-process. A frame is recognised exactly
as Amazon's Java library does: at least 18 bytes, the first one 3, the second 0 (plain) or 5 (zlib), then the schema
version's UUID, the more significant half first. One Avro value has one form in JSON, whatever the branch of a union: no
type names are added.

A producer decides how much work and memory a record takes, and fastavro, of the extra `schemas`, trusts its data, so
nothing is decoded where leases are renewed, but in a process that anything may end: ``python -m mld.schemas.decoder``.
The kernel ends it at the CPU time that a payload of its size may take (SIGPROF), whatever it is doing; more memory than
`MEMORY_BYTES_MAX` is an error of the record. `decoder_process` is the other side of the pipe. This imports little,
because it is started again after each record that ended it.
"""

from __future__ import annotations

import json
import math
import resource
import signal
import sys
import zlib
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from io import BytesIO
from struct import Struct
from typing import Any, BinaryIO
from uuid import UUID

# --- frames ----------------------------------------------------------------------------------------------------------

HEADER_BYTES = 18
VERSION = 3
PLAIN, ZLIB = 0, 5
PAYLOAD_BYTES_MAX = 32 * 1024 * 1024
"""Of one record, as its child gets it. A record of Kinesis has 10 MiB at most; zlib makes a gigabyte of one."""

REQUEST = Struct(">cHI")
"""SCHEMA or PAYLOAD, the schema's number (0: none) with ZLIB_BIT where it is compressed, and how many bytes follow."""
ANSWER = Struct(">cI")
"""DONE or FAILED, and how many bytes follow: base64, or a text that says why not."""
SCHEMA, PAYLOAD, DONE, FAILED = b"S", b"P", b"D", b"F"
ZLIB_BIT = 0x8000
SCHEMAS_MAX = 256
MEMORY_BYTES_MAX = 512 * 1024 * 1024
"""Address space. A record of 10 MiB of small values takes some 200 MB as Python objects."""
CPU_S = 0.2
CPU_S_PER_MB = 0.4  # three times what small values take on a slow machine
_WHY_CHARS_MAX = 500


class UndecodableError(Exception):
    """A framed record that stays as it is; the text says why, and its child reads it."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`version_id` is the UUID of the schema version, as text."""

    version_id: str
    is_compressed: bool


def frame_of(data: bytes) -> Frame | None:
    """Return the frame of a record, of which the first 18 bytes are enough; None if it has none."""
    if len(data) < HEADER_BYTES or data[0] != VERSION or data[1] not in (PLAIN, ZLIB):
        return None
    return Frame(str(UUID(bytes=data[2:HEADER_BYTES])), data[1] == ZLIB)


def inflated(payload: bytes) -> bytes:
    """Return a compressed payload as it was before. Raises UndecodableError."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(payload, PAYLOAD_BYTES_MAX)
        if inflater.unconsumed_tail or (not inflater.eof and len(found) == PAYLOAD_BYTES_MAX):
            raise UndecodableError(f"it inflates to more than {PAYLOAD_BYTES_MAX} bytes")
        found += inflater.flush()
    except zlib.error as error:
        raise UndecodableError(f"its zlib stream is damaged: {error}") from error
    if not inflater.eof:
        raise UndecodableError("its zlib stream is cut off")
    return found


# --- Avro ------------------------------------------------------------------------------------------------------------


def avro_decoder(definition: str) -> Callable[[bytes], bytes]:
    """Return what makes JSON text of data of this schema, the writer's. Both raise UndecodableError."""
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(definition))
    except Exception as error:
        raise UndecodableError(f"the schema is no Avro schema: {error}") from error

    def decode(data: bytes) -> bytes:
        source = BytesIO(data)
        try:
            value = fastavro.schemaless_reader(source, schema, None, handle_unicode_errors="strict")
        except MemoryError:
            raise
        except Exception as error:
            raise UndecodableError(f"the data is not of its Avro schema: {type(error).__name__}: {error}") from error
        if source.tell() != len(data):
            raise UndecodableError(f"{len(data) - source.tell()} bytes are left after the Avro value")
        try:
            return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":")).encode()
        except RecursionError as error:
            raise UndecodableError("the data is nested too deeply") from error

    return decode


def plain(value: Any) -> Any:
    """Return the value in terms of JSON (retrieval#avro-as-json)."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value).replace("inf", "Infinity").replace("nan", "NaN")
        case bytes() | bytearray():
            return b64encode(value).decode("ascii")
        case Decimal():
            return format(value, "f")
        case datetime():
            return _instant(value)
        case date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
    raise UndecodableError(f"a value of the type {type(value).__name__} has no form in JSON")


def _instant(value: datetime) -> str:
    """Return a timestamp in UTC, or a local one as it is."""
    if value.tzinfo is None:
        return value.isoformat()
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


# --- the process -----------------------------------------------------------------------------------------------------


def _decoded(text: bytes, *, is_compressed: bool) -> bytes:
    try:
        data = a2b_base64(text)
    except Base64Error as error:
        raise UndecodableError(f"its data is no base64: {error}") from error
    return inflated(data) if is_compressed else data


def _encoded(data: bytes) -> bytes:
    if len(data) > PAYLOAD_BYTES_MAX:
        raise UndecodableError(f"it becomes more than {PAYLOAD_BYTES_MAX} bytes")
    return b2a_base64(data, newline=False)


def serve(requests: BinaryIO, answers: BinaryIO, allow_cpu: Callable[[float], object]) -> None:
    """Answer requests one after the other, until there are no more. `allow_cpu`: end this process after so many seconds
    of CPU time from now on; 0: do not."""
    definitions: dict[int, str] = {}
    decoders: dict[int, Callable[[bytes], bytes]] = {}
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        kind, number, size = REQUEST.unpack(head)
        body = requests.read(size)
        if len(body) != size:
            return
        if kind == SCHEMA:
            definitions[number] = body.decode()
            decoders.pop(number, None)
            continue
        schema = number & ~ZLIB_BIT
        try:
            allow_cpu(CPU_S)
            data = _decoded(body, is_compressed=bool(number & ZLIB_BIT))
            if schema:
                definition = definitions[schema]
                size = len(data) + (0 if schema in decoders else len(definition))
                allow_cpu(CPU_S + size * CPU_S_PER_MB / 1e6)
                if schema not in decoders:
                    decoders[schema] = avro_decoder(definition)
                data = decoders[schema](data)
            kind, body = DONE, _encoded(data)
        except UndecodableError as error:
            kind, body = FAILED, str(error)[:_WHY_CHARS_MAX].encode(errors="replace")
        except MemoryError:
            kind, body = FAILED, f"decoding it takes more than {MEMORY_BYTES_MAX} bytes of memory".encode()
        allow_cpu(0)
        answers.write(ANSWER.pack(kind, len(body)) + body)
        answers.flush()  # before the next record, which may be the last


def main() -> None:
    """Serve whoever has started this process, within the limits of memory, and without files."""
    with suppress(ImportError):
        import fastavro  # noqa: F401  before any time is measured
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    serve(sys.stdin.buffer, sys.stdout.buffer, partial(signal.setitimer, signal.ITIMER_PROF))


if __name__ == "__main__":
    main()
