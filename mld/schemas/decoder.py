"""The process that decodes payloads, ``python -m mld.schemas.decoder``, with limits on CPU time and memory.

Rules: retrieval#decoding-in-a-process. The producer decides how much work and memory a record takes, and fastavro
trusts its data. So records are not decoded in the daemon, which renews leases, but in this process, which may be killed
at any moment. If a payload takes more CPU time than its size allows, the kernel ends the process (SIGPROF), whatever it
is doing. If a payload takes more than `MEMORY_BYTES_MAX`, its record gets an error. `decoder_process` is the daemon's
side of the pipe. This module imports little, because it is started again after each record that has ended it.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import Struct
from typing import BinaryIO

from mld.schemas.avro_json import avro_decoder
from mld.schemas.frame import PAYLOAD_BYTES_MAX, UndecodableError, inflated

REQUEST = Struct(">cHI")
"""Head of a request: SCHEMA or PAYLOAD; the number of the schema (0: none), with ZLIB_BIT set if the payload is
compressed; the number of bytes that follow.
"""
ANSWER = Struct(">cIII")
"""Head of an answer: DONE or FAILED; the number of bytes that follow, which are base64 if DONE, and a reason as text if
FAILED; the microseconds of CPU since the answer before, and how many of them the payload took beyond what is usual for
its size.
"""
SCHEMA, PAYLOAD, DONE, FAILED = b"S", b"P", b"D", b"F"
ZLIB_BIT = 0x8000
SCHEMAS_MAX = 256
MEMORY_BYTES_MAX = 512 * 1024 * 1024
"""Limit of the address space. A record of 10 MiB of small values takes about 200 MB as Python objects."""
CPU_S = 0.2
"""CPU time that any payload may take; `CPU_S_PER_MB` is added for its size."""
CPU_S_PER_MB = 0.4  # three times what small values take on a slow machine
CPU_S_USUAL = 0.005
"""CPU time that a record may take, besides `CPU_S_PER_MB`, without being charged to its shard: a hundred times what a
small record takes."""
INFLATION_USUAL = 16
"""An inflated payload counts as at most this many times its size as it came, so that a small one which inflates a
thousandfold is charged. The limits above are far above what ordinary payloads take, even those that inflate to more."""
_WHY_CHARS_MAX = 500


def _decoded(text: bytes, *, is_compressed: bool) -> bytes:
    """Return the data from its base64 text, decompressed if it is compressed. Raises UndecodableError."""
    try:
        data = a2b_base64(text)
    except Base64Error as error:
        raise UndecodableError(f"its data is no base64: {error}") from error
    return inflated(data) if is_compressed else data


def _encoded(data: bytes) -> bytes:
    """Return the base64 text of decoded data. Raises UndecodableError if it is too long for a child."""
    if len(data) > PAYLOAD_BYTES_MAX:
        raise UndecodableError(f"it becomes more than {PAYLOAD_BYTES_MAX} bytes")
    return b2a_base64(data, newline=False)


def serve(
    requests: BinaryIO,
    answers: BinaryIO,
    allow_cpu: Callable[[float], object],
    cpu_s: Callable[[], float] = time.process_time,
) -> None:
    """Answer requests one after the other, until the input ends.

    `allow_cpu(seconds)` makes the kernel end this process after that much more CPU time; 0 removes the limit. `cpu_s`
    returns the CPU time that this process has taken. All of it counts for some answer, so that a record that ends the
    process is not charged for the reading and writing of those before it.
    """
    definitions: dict[int, str] = {}
    decoders: dict[int, Callable[[bytes], bytes]] = {}
    answered_s = cpu_s()
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        kind, number, size = REQUEST.unpack(head)
        body = requests.read(size)
        if len(body) != size:
            return
        if kind == SCHEMA:
            definitions[number] = body.decode()
            decoders.pop(number, None)  # after SCHEMAS_MAX schemas, numbers are used again for other schemas
            continue
        schema = number & ~ZLIB_BIT
        # `work_bytes` sets the limit of CPU time, `usual_bytes` the CPU time for which the shard is not charged.
        began_s, work_bytes, usual_bytes = cpu_s(), size, size
        try:
            allow_cpu(CPU_S)  # raised below, by the size of the data and of its schema, if a value is to be decoded
            data = _decoded(body, is_compressed=bool(number & ZLIB_BIT))
            work_bytes, usual_bytes = len(data), min(len(data), INFLATION_USUAL * size)
            if schema:
                definition = definitions[schema]
                schema_bytes = 0 if schema in decoders else len(definition)
                work_bytes, usual_bytes = work_bytes + schema_bytes, usual_bytes + schema_bytes
                allow_cpu(CPU_S + work_bytes * CPU_S_PER_MB / 1e6)
                if schema not in decoders:
                    decoders[schema] = avro_decoder(definition)
                data = decoders[schema](data)
            kind, body = DONE, _encoded(data)
        except UndecodableError as error:
            kind, body = FAILED, str(error)[:_WHY_CHARS_MAX].encode(errors="replace")
        except MemoryError:
            kind, body = FAILED, f"decoding it takes more than {MEMORY_BYTES_MAX} bytes of memory".encode()
        allow_cpu(0)
        now_s = cpu_s()
        took_s, answered_s = now_s - answered_s, now_s
        excess_s = max(0.0, now_s - began_s - CPU_S_USUAL - usual_bytes * CPU_S_PER_MB / 1e6)
        answers.write(ANSWER.pack(kind, len(body), int(took_s * 1e6), int(excess_s * 1e6)) + body)
        answers.flush()  # now, because the next record may end this process


def main() -> None:
    """Limit this process's memory and files, and then serve the daemon that has started it."""
    with suppress(ImportError):
        import fastavro  # noqa: F401  import it now, so that its CPU time does not count for a record
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    serve(sys.stdin.buffer, sys.stdout.buffer, partial(signal.setitimer, signal.ITIMER_PROF))


if __name__ == "__main__":
    main()
