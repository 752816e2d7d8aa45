"""Twins in memory of what engine and host talk to: sinks with scripted faults, frames that are lists of records."""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, plan
from mld.processors.spark.batch.outcome import BatchOutcome
from mld.processors.spark.batch.page_file import PageWriter, rows
from mld.processors.spark.batch.record_columns import read_line
from mld.processors.spark.batch.running import Running
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.commit.ended_shards import retired
from mld.processors.spark.high_water_marks import advanced, moved
from mld.processors.spark.pipeline import Pipeline
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session.failing_rows import PartitionFailure
from mld.processors.spark.session.handover import BITS, Counted, Handed, Slices
from mld.processors.spark.session_errors import SessionGone, TaskHangs
from mld.processors.spark.settings import SparkSettings, make
from mld.processors.spark.sink_port import Fenced, JobFailed, Published
from mld.processors.spark.sink_spec import SinkSpec
from mld.properties.lines import parse
from mld.properties.references import Sources
from mld.properties.spark import read
from mld.protocol.codec import encode_process_records
from mld.protocol.messages import Record

STREAM = "s"
ARN = f"arn:aws:kinesis:us-east-1:000000000000:stream/{STREAM}"
DAEMON = {"MLD_STREAM_ARN": ARN, "MLD_STREAM_CREATED": "2026-01-02T03:04:05.000Z"}
"""What the daemon tells its children of the stream."""


@dataclass
class Frame:
    """What a DataFrame is to the engine: something that a sink writes, of which `on_write` hears."""

    records: list[tuple[str, int, bytes]]
    schema: Any = None
    write: Any = None
    on_write: Callable[[], None] = lambda: None


@dataclass
class MemorySink:
    """A table with marks, which other writers may share. Raises one of `faults` per publication."""

    name: str
    marks: dict[StreamShard, RecordPosition] = field(default_factory=dict)
    rows: list[tuple[str, int, bytes]] = field(default_factory=list)
    openings: list[Exception | None] = field(default_factory=list)
    """Raised by `open`, one each time."""
    faults: list[Exception | None] = field(default_factory=list)
    faults_after: list[Exception | None] = field(default_factory=list)
    poison: Callable[[bytes], object] = lambda data: False
    publications: int = 0
    opened: int = 0
    exactly_once: bool = True
    refusal: type[JobFailed] = JobFailed
    """What it says of a poisoned record."""
    retiring: dict[StreamShard, RecordPosition] = field(default_factory=dict)

    def retire(self, ended):
        self.retiring = dict(ended)

    def open(self):
        self._fault(self.openings)
        self.opened += 1
        return dict(self.marks)

    def publish(self, frame, batch, batch_id):
        if changed := moved(batch, self.marks):
            raise Fenced(self.name, changed)
        self._fault(self.faults)
        rows = frame.records if frame is not None else []
        if frame is not None:
            frame.on_write()
        if any(self.poison(data) for _, _, data in rows):
            raise self.refusal("division by zero")
        self.rows += rows
        self.marks = retired(advanced(self.marks, batch), self.retiring)
        self.publications += 1
        self._fault(self.faults_after)
        return Published(dict(self.marks), self.publications, len(rows))

    @staticmethod
    def _fault(faults):
        fault = faults.pop(0) if faults else None
        if fault is not None:
            raise fault


class MemoryFrames:
    """Frames of the records of pages; data that starts with `{` but is no JSON is malformed."""

    def __init__(self, divert: bool = False) -> None:
        self.divert = divert
        self.handed = 0
        self.read = 0
        """Records that were handed over, all together."""
        self.shares: list[int] = []
        self.pages: list[int] = []
        """How many each time."""
        self.poison: Callable[[bytes], object] = lambda data: False
        self.slices: Slices | None = None
        self.can_slice = True
        self.says = "division by zero"

    def compute(self, frame: Frame) -> None:
        frame.on_write()
        if any(self.poison(data) for _, _, data in frame.records):
            raise ValueError("it cannot be computed")

    reporting_functions = staticmethod(nullcontext)

    def failing(self, frame: Frame, count: int) -> Sequence[PartitionFailure]:
        """By slices of the last page that was handed over in such; else the pipeline makes partitions of its own."""
        if self.slices is None or count != self.slices.number:
            raise ValueError("other partitions")
        frame.on_write()
        size = self.slices.size
        cut = [frame.records[at * size : (at + 1) * size] for at in range(count)]
        bad = [at for at, part in enumerate(cut) if any(self.poison(data) for _, _, data in part)]
        return [PartitionFailure(at, None, self.says) for at in bad]

    def of_pages(self, pages: Sequence[str], slices: Slices | None = None, suspects: bytes | None = None) -> Handed:
        self.handed += 1
        self.pages.append(len(pages))
        self.slices = slices if self.can_slice else None
        every = []
        for page in pages:
            for _, record in rows(Path(page.removeprefix("file://"))):
                bit = _bit_of(record.shard.decode(), int(record.sequence))
                if suspects is None or suspects[bit >> 3] >> (bit & 7) & 1:
                    self.read += 1
                    every.append((record.shard.decode(), int(record.sequence), record.data))
        bad = [record for record in every if record[2].startswith(b"{bad")]
        good = [record for record in every if record not in bad] if self.divert else every
        ran: list[bool] = []

        def because(reasons: Sequence[str], sinks: Sequence[str]) -> Frame:
            to = f" for {','.join(sinks)}" if sinks else ""
            records = zip(every, reasons, strict=True)
            return Frame([(shard, number, f"{why}{to}".encode()) for (shard, number, _), why in records])

        def counts() -> Counted | None:
            return Counted(len(every), len(bad), bitmap_of(one[:2] for one in bad)) if ran else None

        def look() -> Counted:
            return Counted(len(every), len(bad), reason="it is bad")

        return Handed(Frame(good, on_write=lambda: ran.append(True)), lambda: Frame(bad), because, counts, look)

    @contextmanager
    def shared(self, records: Frame, frames: Sequence[Frame]) -> Iterator[None]:
        self.shares.append(len(frames))
        yield


def _bit_of(shard: str, number: int) -> int:
    return crc32(f"{number}:0:{shard}".encode()) % BITS


def bitmap_of(records: Iterable[tuple[str, int]]) -> bytes:
    bitmap = bytearray(BITS // 8)
    for shard, number in records:
        bit = _bit_of(shard, number)
        bitmap[bit >> 3] |= 1 << (bit & 7)
    return bytes(bitmap)


class MemoryHealth:
    def __init__(self) -> None:
        self.gone = False
        self.hung = False

    def check(self) -> None:
        if self.gone:
            raise SessionGone("it is gone")
        if self.hung:
            self.hung = False
            raise TaskHangs("it is cancelled")

    def probe(self) -> None:
        self.check()


def settings_of(*more: str, sinks: Iterable[str] = ("out",), env: Mapping[str, str] = DAEMON) -> SparkSettings:
    keys = [f"mld.spark.sink.{name}.path = /{name}" for name in sinks]
    text = "\n".join(["mld.spark.pipeline = p.py:f", *keys, *more])
    return make(read("f", parse(text.encode()), (), Sources({})), application="app", stream=STREAM, env=env)


@dataclass
class Bed:
    """An engine over twins."""

    directory: Path
    settings: SparkSettings
    transform: Callable[[Any, Any], Any] = lambda records, batch: records
    dead: MemorySink | None = None
    sinks: Mapping[str, MemorySink] = field(default_factory=dict)
    running: Running | None = None

    def __post_init__(self) -> None:
        self.spool = Spool(self.directory / "spool")
        self.health = MemoryHealth()
        self.frames = MemoryFrames(divert=self.dead is not None)
        if not self.sinks:
            self.sinks = {spec.name: MemorySink(spec.name) for spec in self.settings.sinks}
        self.use(self.spool)

    def use(self, spool: Spool) -> None:
        """An engine over another spool."""
        self.spool = spool
        self.engine = Engine(
            self.settings,
            self.frames,
            self.health,
            Pipeline(self.transform, [spec.name for spec in self.settings.sinks]),
            list(self.sinks.values()),
            self.dead,
            self.spool,
            self.running,
        )
        self.engine.start()

    def poison(self, is_poison: Callable[[bytes], object]) -> None:
        """Let no job be computed that contains such a record."""
        self.frames.poison = self.sinks["out"].poison = is_poison

    def offer(
        self, shard: str, numbers: Iterable[int], data: Mapping[int, bytes] = {}, *, after: int | None = None
    ) -> Offer:
        """`after`: the record that was delivered right before them, if that is known."""
        offer = offer_to(self.spool, StreamShard(STREAM, shard), numbers, data)
        return replace(offer, preceding={} if after is None else {offer.shard: RecordPosition(after)})

    def run(self, *offers: Offer) -> BatchOutcome:
        """As a host does."""
        return run_offers(self.engine, *offers)

    def plan(self, *offers: Offer) -> MicroBatch:
        """A micro-batch as a host plans it by the marks of now."""
        return plan_of(self.engine, *offers)


OFFER_NUMBERS = count(1)


def offer_to(spool: Spool, shard: StreamShard, numbers: Iterable[int], data: Mapping[int, bytes] = {}) -> Offer:
    """Records of these sequence numbers, as a host takes them from a child."""
    return page_of(spool, shard, line_of(numbers, data))


def page_of(spool: Spool, shard: StreamShard, *lines: bytes) -> Offer:
    """A page as a child writes it."""
    number = next(OFFER_NUMBERS)
    writer = PageWriter(spool.page(1, number), shard)
    for line in lines:
        for group in read_line(line).groups:
            writer.add(group)
    page = writer.close()
    return Offer(1, number, shard, page.first, page.last, page.records, sum(map(len, lines)))


def run_offers(engine: Engine, *offers: Offer) -> BatchOutcome:
    """One micro-batch, as a host plans it."""
    return engine.run(plan_of(engine, *offers))


def plan_of(engine: Engine, *offers: Offer) -> MicroBatch:
    return plan(offers, {o.shard: mark for o in offers if (mark := engine.mark_of(o.shard)) is not None})


def run_data(
    engine: Engine,
    spool: Spool,
    data: Mapping[int, bytes],
    shard: str,
    after: RecordPosition | None = None,
) -> BatchOutcome:
    """One micro-batch of one shard's records, by their sequence numbers; `after`: what was delivered before."""
    offer = offer_to(spool, StreamShard(STREAM, shard), data, data)
    return run_offers(engine, replace(offer, preceding={} if after is None else {offer.shard: after}))


def line_of(numbers: Iterable[int], data: Mapping[int, bytes] = {}, lag: int | None = 0) -> bytes:
    """A `processRecords` line with records of these sequence numbers."""
    records = tuple(Record(data.get(n, b"%d" % n), "k", str(n), 0, 1_700_000_000_000) for n in numbers)
    return b"".join(encode_process_records(records, lag))


def spec(name: str) -> SinkSpec:
    return SinkSpec(name, path=f"/{name}")
