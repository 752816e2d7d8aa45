"""Inflates payloads and makes JSON of Avro, in a process that anything may end: ``python -m mld.schemas.decoder``.

Rules: retrieval#decoding-in-a-process. A producer decides how much work and memory a record takes, so none of it is
done where leases are renewed. The kernel ends the process at the CPU time that a payload of its size may take
(SIGPROF), whatever it is doing; more memory than `MEMORY_BYTES_MAX` is an error of the record. `decoder_process` is the
other side of the pipe. It imports little, because it is started again after each record that ended it.
"""

from __future__ import annotations

import resource
import signal
import sys
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import BinaryIO

from mld.schemas.avro import avro_decoder
from mld.schemas.frames import PAYLOAD_BYTES_MAX, UndecodableError, inflated

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
