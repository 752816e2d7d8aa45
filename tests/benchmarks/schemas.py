"""What the Glue Schema Registry costs: processor time from the body of an answer to the line for the child.

In one process and its decoder, without sockets to AWS and children, so it is a larger share than of a daemon's time.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from mld.consumer.record_budgets import RecordBudgets
from mld.core.clock import LoopClock
from mld.core.positions import TRIM_HORIZON
from mld.core.turns import in_turns
from mld.metrics.registry import Metrics
from mld.properties.values import SchemaMode
from mld.retrieval.rawbody import page_of
from mld.schemas.decoder_process import DecoderProcess
from mld.schemas.definition_files import DefinitionFiles
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import SchemaRegistry

RECORDS = 2_000
RUNS = 15
SHARES = (0.0, 0.01, 1.0)
"""Of records with a frame."""
VERSION_ID = "00112233-4455-6677-8899-aabbccddeeff"
SCHEMA = {
    "type": "record",
    "name": "Click",
    "fields": [{"name": "at", "type": "long"}, {"name": "user", "type": "string"}, {"name": "page", "type": "string"}],
}


class OneSchema:
    """A registry's service that knows one version."""

    async def call(self, operation: str, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        del operation, params
        return {"SchemaArn": "arn:x:schema/r/clicks", "DataFormat": "AVRO", "SchemaDefinition": json.dumps(SCHEMA)}


def measure() -> None:
    """Print a table: microseconds of processor time a record, and the ratio to `off` of the same page."""
    print("\nGlue Schema Registry: processor time from answer to line, 2,000 Avro records of 200 bytes, medians\n")
    print("| framed | off | strip | json | strip / off | json / off |\n|---|---|---|---|---|---|")
    for share in SHARES:
        body = _body(share)
        off, strip, decoded = asyncio.run(_times(body))
        print(
            f"| {share:.0%} | {off:.2f} us | {strip:.2f} us | {decoded:.2f} us "
            f"| {strip / off:.2f} | {decoded / off:.2f} |",
            flush=True,
        )


async def _times(body: bytes) -> tuple[float, float, float]:
    """Of off, strip and json, which take turns, in microseconds a record."""
    with tempfile.TemporaryDirectory() as folder:
        registry = SchemaRegistry(OneSchema(), LoopClock(), write_file=DefinitionFiles(Path(folder)).write)
        budgets = RecordBudgets("shard", LoopClock(), Metrics().begin("shard", 0.0))
        decoder = DecoderProcess()
        preparers = [None] + [
            SchemaPreparer(registry, LoopClock(), mode, decoder.decode, waits=False)
            for mode in (SchemaMode.STRIP, SchemaMode.JSON)
        ]
        times: list[list[float]] = [[], [], []]
        for run in range(RUNS + 1):
            for taken, preparer in zip(times, preparers, strict=True):
                began = _cpu_s(decoder)
                page = page_of(body)
                batch = page.after(TRIM_HORIZON)
                await in_turns(batch.opening())
                if preparer is not None and page.bears_frames:
                    batch = await preparer.prepare(batch, budgets)
                for _ in batch.line():
                    pass
                if run:  # the first warms caches
                    taken.append((_cpu_s(decoder) - began) / RECORDS * 1e6)
        decoder.close()
    off, strip, decoded = map(median, times)
    return off, strip, decoded


def _cpu_s(decoder: DecoderProcess) -> float:
    """Return the processor time of this process, and of the decoder once it is there."""
    other = Path(f"/proc/{decoder.pid}/schedstat")
    return time.process_time() + (int(other.read_text().split()[0]) / 1e9 if decoder.pid else 0.0)


def _body(share: float) -> bytes:
    chance = random.Random(7)
    encode = _encoder()
    head = b"\x03\x00" + uuid.UUID(VERSION_ID).bytes
    framed = set(chance.sample(range(RECORDS), round(share * RECORDS)))
    records = []
    for number in range(RECORDS):
        payload = encode({"at": 1_700_000_000_000 + number, "user": f"user {number}", "page": "/p" * 80})
        records.append(
            {
                "ApproximateArrivalTimestamp": 1.7e9 + number / 1000,
                "Data": base64.b64encode((head if number in framed else b"") + payload).decode(),
                "PartitionKey": f"user {number}",
                "SequenceNumber": str(49 * 10**54 + number),
            }
        )
    answer = {"MillisBehindLatest": 0, "NextShardIterator": "n", "Records": records}
    return json.dumps(answer, separators=(",", ":")).encode()


def _encoder() -> Callable[[Any], bytes]:
    import fastavro

    schema = fastavro.parse_schema(dict(SCHEMA))

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        return out.getvalue()

    return encode
