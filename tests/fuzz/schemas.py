"""Records that a producer frames for the schema registry: named attacks, and drawn schemas with drawn data.

    python -m tests.fuzz.schemas --examples 20000     a long run; `make fuzz-producer`

Each is decoded by a real decoder between two harmless records, which must be decoded; what it becomes itself is JSON,
or an error with a reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import zlib
from base64 import b64decode, b64encode
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mld.schemas.decoder_process import DecoderJob, DecoderProcess
from mld.schemas.frame import PAYLOAD_BYTES_MAX, UndecodableError

CPU, MEMORY, ENDED = "more CPU time", "bytes of memory", "ended the decoder"


class Attack(NamedTuple):
    """`why`: words of which the error has one; which bound is met first depends on the machine."""

    name: str
    job: DecoderJob
    why: tuple[str, ...]


def _long(number: int) -> bytes:
    """A number as Avro writes it."""
    number <<= 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _record(name: str, *fields: tuple[str, object]) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": of} for one, of in fields]}


def _job(schema: object, data: bytes, *, is_compressed: bool = False) -> DecoderJob:
    text = zlib.compress(data) if is_compressed else data
    return DecoderJob(b64encode(text), is_compressed, json.dumps(schema))


def _array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def _levels(count: int) -> dict[str, object]:
    """Ten of the level below, and at the bottom nothing: 10 ** count values without a byte of data."""
    schema: dict[str, Any] = _record("r0", ("a", "null"))
    for level in range(1, count + 1):
        others = [(f"f{number}", f"r{level - 1}") for number in range(1, 10)]
        schema = _record(f"r{level}", ("f0", schema), *others)
    return schema


_NULLS = [(f"a_rather_long_name_of_a_field_{number:04d}", "null") for number in range(1000)]
_FLAGS = 31 << 20
GOOD = _job(_record("Good", ("a", "long")), b"\x0e")
ATTACKS = (
    Attack("ten levels of ten", _job(_levels(9), b""), (CPU, MEMORY)),
    Attack(
        "an array of flags, compressed",
        _job(_array(_record("f", ("on", "boolean"))), _long(_FLAGS) + bytes(_FLAGS) + b"\0", is_compressed=True),
        (MEMORY, CPU),
    ),
    Attack(
        "an array of null fields",
        _job(_array(_record("f", ("b", "boolean"), *_NULLS)), _long(60_000) + bytes(60_000) + b"\0"),
        (CPU, MEMORY),
    ),
    Attack("an array of nothing", _job(_array("null"), _long(2**40) + b"\0"), (CPU, MEMORY)),
    Attack(
        "nested without end",
        _job(_record("List", ("next", ["null", "List"])), b"\x02" * 3_000_000 + b"\0"),
        (ENDED, "nested too deeply", "RecursionError", CPU, MEMORY),
    ),
    Attack(
        "a number of many digits",
        _job({"type": "bytes", "logicalType": "decimal", "precision": 40}, _long(300_000) + b"\x7f" * 300_000),
        (CPU,),
    ),
    Attack(
        "more text than its bound",
        _job(_array("bytes"), b"".join((_long(1), _long(_FLAGS), bytes(_FLAGS), b"\0")), is_compressed=True),
        ("becomes more than", MEMORY, CPU),
    ),
)

# --- drawn ------------------------------------------------------------------------------------------------------------

_PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
_LOGICAL = st.sampled_from(
    [
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2},
        {"type": "string", "logicalType": "uuid"},
        {"type": "fixed", "name": "Duration", "size": 12, "logicalType": "duration"},
        {"type": "fixed", "name": "Wide", "size": 2**31},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "string", "logicalType": "of nobody"},
        "R",
        "nobody",
    ]
)


def _grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.builds(lambda n, of: (f"f{n}", of), st.integers(0, 5), inner), max_size=4)
    return (
        st.builds(_array, inner)
        | st.builds(lambda of: {"type": "map", "values": of}, inner)
        | st.lists(inner, max_size=4)
        | st.builds(lambda name, fields: _record(name, *fields), st.sampled_from("RST"), fields)
    )


_schemas = st.recursive(_PRIMITIVES | _LOGICAL, _grown, max_leaves=8) | st.text(max_size=20)
_numbers = st.integers(-(2**65), 2**65).map(lambda number: _long(abs(number)))
_data = st.lists(st.binary(max_size=20) | _numbers, max_size=12).map(b"".join)


def _drawn(schema: Any, data: bytes, repeats: int, packing: str) -> DecoderJob:
    data *= repeats
    text = {"plain": data, "zlib": zlib.compress(data), "damaged": zlib.compress(data)[:-3]}[packing]
    return DecoderJob(b64encode(text), packing != "plain", json.dumps(schema))


_repeats = st.sampled_from([1, 1, 1, 1000, 100_000])
jobs = st.builds(_drawn, _schemas, _data, _repeats, st.sampled_from(["plain", "zlib", "damaged"]))


async def check(decoder: DecoderProcess, job: DecoderJob) -> None:
    """Decode it between two others, as the page's other records stand around it."""
    before, found, after = await decoder.decode([GOOD, job, GOOD])
    assert isinstance(before, bytes) and isinstance(after, bytes), (before, after)
    assert b64decode(before) == b64decode(after) == b'{"a":7}'
    if isinstance(found, UndecodableError):
        assert str(found)
    else:
        data = b64decode(found, validate=True)
        assert len(data) <= PAYLOAD_BYTES_MAX
        json.loads(data)


def run(examples: int, *, derandomize: bool) -> None:
    """Draw so many records; raise for the smallest that breaks a promise."""
    limits = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    with asyncio.Runner() as runner:
        decoder = DecoderProcess()
        try:
            limits(given(jobs)(lambda job: runner.run(check(decoder, job))))()
        finally:
            decoder.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.schemas", description=__doc__)
    parser.add_argument("--examples", type=int, default=5000, help="records to draw (default %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    run(arguments.examples, derandomize=False)
    took_s = time.monotonic() - began
    print(f"{arguments.examples} drawn records of drawn schemas in {took_s:.0f} s: nothing found", flush=True)


if __name__ == "__main__":
    main()
