"""The Kinesis of the Spark benchmarks: `path.canned` with JSON in its records.

    python -m tests.benchmarks.spark_stand RECORDS BYTES

Payloads are JSON objects of `BYTES` bytes, shop events with a note that fills them up. Streams are named as there.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import threading

from tests.benchmarks.path import canned
from tests.benchmarks.path.records import BLOCK_RECORDS, FIRST_MS, Records, _File, record_text

SCHEMA = (
    "user STRING, kind STRING, at TIMESTAMP, page STRING, session STRING, amount DOUBLE, quantity INT, "
    "referrer STRING, agent STRING, tags ARRAY<STRING>, note STRING"
)
KINDS = ("view", "click", "buy", "bot")
PAYLOADS = 20_000
"""Different ones: more than a dictionary page of Parquet holds."""
LIVE_BYTES = 1024


def payload(rng: random.Random, number: int, size: int) -> bytes:
    """One event; a quarter of them are bots, which the pipeline drops."""
    event = {
        "user": f"user-{rng.randrange(10**6):06d}",
        "kind": KINDS[number % len(KINDS)],
        "at": f"2026-01-02T03:{number // 60 % 60:02d}:{number % 60:02d}.123Z",
        "page": f"/shop/{rng.choice(('shoes', 'hats', 'coats'))}/{rng.randrange(10_000)}",
        "session": f"{rng.getrandbits(128):032x}",
        "amount": rng.randrange(100_000) / 100,
        "quantity": rng.randrange(9),
        "referrer": f"https://www.example.com/{rng.randrange(10**6)}",
        "agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0",
        "tags": ["a", "b", "c"],
        "note": "",
    }
    missing = size - len(json.dumps(event, separators=(",", ":")))
    event["note"] = base64.b64encode(rng.randbytes(max(0, missing))).decode()[: max(0, missing)]
    return json.dumps(event, separators=(",", ":")).encode()


def payloads(count: int, size: int) -> list[str]:
    """In base64."""
    rng = random.Random(size)
    return [base64.b64encode(payload(rng, number, size)).decode() for number in range(count)]


class JsonRecords(Records):
    """As its parent, with events in place of noise."""

    def __init__(self, count: int, record_bytes: int) -> None:
        self.count = count
        self.record_bytes = record_bytes
        self._file = _File()
        self._events = None
        texts = payloads(min(count, PAYLOADS), record_bytes)
        for start in range(0, count, BLOCK_RECORDS):
            numbers = range(start, min(count, start + BLOCK_RECORDS))
            self._file.append(
                [record_text(n, texts[n % len(texts)], f"key-{n:08d}", FIRST_MS + n).encode() + b"," for n in numbers]
            )
        if count:
            self._file.finish()


class JsonKinesis(canned.Kinesis):
    """Live records are events, too; their arrival is the time they were put."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self._payloads = payloads(64, LIVE_BYTES)

    def live_texts(self, stream: canned.Stream, shard: int, start: int, end: int) -> bytes:
        texts = []
        for index in range(start, end):
            at_ms = int(self.put_at(stream, shard, index) * 1000)
            texts.append(record_text(index, self._payloads[index % len(self._payloads)], f"key-{index}", at_ms))
        return ",".join(texts).encode()


def main() -> None:
    kinesis = canned.Handler.kinesis = JsonKinesis(JsonRecords(int(sys.argv[1]), int(sys.argv[2])))
    server = canned.Server(("127.0.0.1", 0), canned.Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    canned.obey(kinesis)


if __name__ == "__main__":
    main()
