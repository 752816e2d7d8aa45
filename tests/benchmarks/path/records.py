"""Ready-made records of a shard: their text as GetRecords sends it, in one file in memory, and the same as events.

All shards have the same records. A sequence number says which record it is (`sequence_number`, `index_of`), so that an
answer is a slice of the file between a head and a tail.
"""

from __future__ import annotations

import base64
import mmap
import os
import tempfile
from array import array
from collections.abc import Iterator
from typing import IO

from mld.local import event_frames

SEQUENCE_HEAD = "4959033827149025660855969253836157109"
INDEX_DIGITS = 19
FIRST_MS = 1_763_661_600_123
LAG_MS = 3_600_000
PAYLOADS = 512
"""Different ones, which come again in turn: more than a cache holds at 20 KB, and nobody looks for repetitions."""
ANSWER_BYTES_MAX = 10 * 1024 * 1024
ANSWER_RECORDS_MAX = 10_000
EVENT_BYTES_MAX = 1024 * 1024
BLOCK_RECORDS = 1000


def sequence_number(index: int) -> str:
    return f"{SEQUENCE_HEAD}{index:0{INDEX_DIGITS}d}"


def index_of(sequence: str) -> int:
    return int(sequence[-INDEX_DIGITS:])


def answer_records_max(record_bytes: int) -> int:
    """Of one GetRecords answer."""
    return max(1, min(ANSWER_RECORDS_MAX, ANSWER_BYTES_MAX // max(1, record_bytes)))


def event_records_max(record_bytes: int) -> int:
    """Of one event of a subscription."""
    return max(1, min(ANSWER_RECORDS_MAX, EVENT_BYTES_MAX // max(1, record_bytes)))


def record_text(index: int, payload: str, key: str, arrival_ms: int) -> str:
    """As Kinesis writes it: payload first, times as 1.763661600123E9 without zeros at the end."""
    digits = str(arrival_ms).rstrip("0")
    return (
        f'{{"Data":"{payload}","PartitionKey":"{key}","ApproximateArrivalTimestamp":{digits[0]}.{digits[1:]}E9,'
        f'"SequenceNumber":"{sequence_number(index)}"}}'
    )


class _File:
    """A file in memory, grown by `append` and then read through `view`, or sent by its descriptor."""

    def __init__(self) -> None:
        shared = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=shared)  # noqa: SIM115
        self.starts = array("Q", [0])

    def append(self, pieces: list[bytes]) -> None:
        self._file.write(b"".join(pieces))
        at = self.starts[-1]
        for piece in pieces:
            at += len(piece)
            self.starts.append(at)

    def finish(self) -> None:
        self._file.flush()
        self.descriptor = self._file.fileno()
        self.view = memoryview(mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        self._file.close()


class Records:
    """`count` records of `record_bytes` random bytes. A record ends with the comma before the next one."""

    def __init__(self, count: int, record_bytes: int) -> None:
        self.count = count
        self.record_bytes = record_bytes
        payloads = [base64.b64encode(os.urandom(record_bytes)).decode() for _ in range(PAYLOADS)]
        self._file = _File()
        for start in range(0, count, BLOCK_RECORDS):
            self._file.append(
                [
                    record_text(n, payloads[n % PAYLOADS], f"key-{n:08d}", FIRST_MS + n).encode() + b","
                    for n in range(start, min(count, start + BLOCK_RECORDS))
                ]
            )
        if count:
            self._file.finish()
        self._events: Events | None = None

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where the text of some records (at least one) stands in the file, without the last comma."""
        return self._file.starts[start], self._file.starts[end] - 1

    def text(self, start: int, end: int) -> memoryview:
        first, last = self.span(start, end)
        return self._file.view[first:last]

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()

    def events(self) -> Events:
        """The same as events; made when first asked for."""
        if self._events is None:
            self._events = Events(self)
        return self._events


class Events:
    """The records as events of `records_each`, each in its frame, each frame in a chunk."""

    def __init__(self, records: Records) -> None:
        self.records_each = event_records_max(records.record_bytes)
        self._file = _File()
        for start in range(0, records.count, self.records_each):
            end = min(records.count, start + self.records_each)
            self._file.append([chunk(records_event(bytes(records.text(start, end)), end - 1, LAG_MS))])
        self._file.finish()

    @property
    def descriptor(self) -> int:
        return self._file.descriptor

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where the events stand that have the records from `start`, rounded down, to `end`, rounded up."""
        last = min(-(-end // self.records_each), len(self._file.starts) - 1)
        return self._file.starts[start // self.records_each], self._file.starts[last]

    def close(self) -> None:
        self._file.close()

    def pieces(self, span: tuple[int, int], size: int) -> Iterator[memoryview]:
        for at in range(span[0], span[1], size):
            yield self._file.view[at : min(span[1], at + size)]


def records_event(texts: bytes, last_index: int, lag_ms: int) -> bytes:
    """The frame of an event; `last_index` is that of its last record, or of the last one before it."""
    head = b'{"ContinuationSequenceNumber":"%b","MillisBehindLatest":%d,"Records":[' % (
        sequence_number(max(0, last_index)).encode(),
        lag_ms,
    )
    return event_frames.event("SubscribeToShardEvent", head + texts + b"]}")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
