"""Several writers on one sink in a bucket, interleaved request by request from a seed, with deaths, zombies, lost and
late answers, requests that are carried out long after their writer has died, and a clock that goes in steps of hours.

Every record of every shard must be in the sink once and in no more than one place, whatever the schedule.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from mld.processors.spark.commit import s3_journal
from mld.processors.spark.commit.s3_journal import HEAD_KEY, STAGING_KEY, S3Journal
from mld.processors.spark.high_water_marks import RecordPosition, StreamShard, spans
from mld.processors.spark.sink_port import SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import FileSink, PartitionedSink
from mld.processors.spark.writer_identity import WriterIdentity
from tests.support.tiers import sliced
from tests.twins.bucket import BucketInMemory, Fault, MemoryObjects
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import NOBODY, RECORDS, SEEDS, SHARDS, Frame, World, _records

PREFIX = "tables/clicks/"
LOST = 0.06
"""Of requests that write, how many get no answer."""
HOUR_S = 3600.0


class Objects(MemoryObjects):
    """Uploads what its process has in its memory of a disk."""

    def __init__(self, local: MemoryStore, *rest, **more) -> None:
        super().__init__(*rest, **more)
        self._local = local

    def read_local(self, file: Path) -> bytes:
        return self._local.read(str(file).removeprefix("memory:/"))


def sink_over(
    bucket: BucketInMemory,
    writer: WriterIdentity = NOBODY,
    *,
    before: Callable[[str], None] = lambda _: None,
    fault: Callable[[], Fault] = lambda: Fault.NONE,
    unique: Callable[[], str] = lambda: uuid4().hex,
    ignores_conditions: bool = False,
    partition_by: tuple[str, ...] = (),
) -> FileSink:
    """The real sink over a bucket in memory, with a few plain writes in place of Spark's part."""
    local = MemoryStore(Disk())
    objects = Objects(local, bucket, before, fault, ignores_conditions=ignores_conditions)
    journal = S3Journal(
        objects,
        PREFIX,
        local,
        "out",
        place=f"s3://bucket/{PREFIX}",
        at_once=1,
        sleep=lambda _: None,
        unique=unique,
    )

    class Sink(PartitionedSink):
        def _columns(self, frame):
            return ()

        def _write(self, frame: Frame, token: str) -> int:
            by_partition: dict[int, list[tuple[str, int]]] = {}
            for shard, sequence in frame.records:
                by_partition.setdefault(sequence % 2 if partition_by else 0, []).append((shard, sequence))
            for partition, records in by_partition.items():
                where = f"p={partition}/" if partition_by else ""
                local.put(f"{journal.data(token)}/{where}part.json", json.dumps(records).encode())
            return len(frame.records)

    spec = SinkSpec("out", partition_by=partition_by, writer=writer, shared=writer is not NOBODY)
    return Sink(spec, local, journal, f"s3://bucket/{PREFIX}")


@dataclass
class S3World(World):
    bucket: BucketInMemory = field(default_factory=BucketInMemory)
    partition_by: tuple[str, ...] = ()
    ignores_conditions: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unique = itertools.count(1)

    def sink_of(self, pid: int, before: Callable[[str], None], writer: WriterIdentity) -> FileSink:
        def turn(operation: str) -> None:
            before(operation)
            if self.rng.random() < 0.02:
                self.bucket.now_s += self.rng.random() * 40 * HOUR_S
            if self.bucket.later and self.rng.random() < 0.2:
                self.bucket.later.pop(self.rng.randrange(len(self.bucket.later)))()

        out_of_reach = 0

        def fault() -> Fault:
            nonlocal out_of_reach
            if self.rng.random() < 0.01:
                out_of_reach = 12
            out_of_reach -= 1
            if out_of_reach < 0 and self.rng.random() > LOST:
                return Fault.NONE
            return self.rng.choice([Fault.NOT_DONE, Fault.DONE, Fault.LATE])

        return sink_over(
            self.bucket,
            writer,
            before=turn,
            fault=fault,
            unique=lambda: f"{next(self._unique):032x}",
            partition_by=self.partition_by,
            ignores_conditions=self.ignores_conditions,
        )


def read(bucket: BucketInMemory) -> Counter[tuple[str, int]]:
    """What a reader sees: every object below the sink that is not hidden."""
    found: Counter[tuple[str, int]] = Counter()
    for key, (data, _, _) in bucket.objects.items():
        name = key.removeprefix(PREFIX)
        if not any(part.startswith(("_", ".")) for part in name.split("/")):
            found.update((shard, sequence) for shard, sequence in json.loads(data))
    return found


@pytest.fixture(autouse=True)
def many_sweeps(monkeypatch):
    monkeypatch.setattr(s3_journal, "SWEEP_EVERY", 2)


@pytest.mark.parametrize("partition_by", sliced([(), ("p",)], ("p",)), ids=["flat", "partitioned"])
def test_every_record_once_whatever_the_schedule(partition_by):
    for seed in range(2 * SEEDS):
        rng = random.Random(seed)
        world = S3World(rng, PartitionedSink, partition_by=partition_by)
        pid = 0
        for death in (0.02, 0.01, 0.0):
            for _ in range(rng.randint(2, 3)):
                pid += 1
                world.start(pid, rng.sample(SHARDS, rng.randint(1, 3)))
            if not death:
                world.start(pid + 1, SHARDS)
            world.play(death)
            assert not [record for record, count in read(world.bucket).items() if count > 1], seed
            for shard, position in world.told.items():
                found = read(world.bucket)
                assert all(found[shard.shard, sequence] for sequence in range(1, position.sequence + 1)), seed
        for request in world.bucket.later:
            request()
        sink_over(world.bucket, partition_by=partition_by).open()
        expected = Counter((shard.shard, sequence) for shard in SHARDS for sequence in range(1, RECORDS + 1))
        assert read(world.bucket) == expected, f"seed {seed}"


def test_writers_that_share_a_sink_write_everything_each():
    writers = [WriterIdentity("one", stream="s"), WriterIdentity("two", stream="s")]
    for seed in range(SEEDS // 2):
        world = S3World(random.Random(seed), PartitionedSink)
        pid = 0
        for death in (0.02, 0.0):
            for writer in writers:
                for _ in range(2):
                    pid += 1
                    world.start(pid, SHARDS, writer)
            world.play(death)
        every = spans(dict.fromkeys(SHARDS, RecordPosition(RECORDS)), {})
        expected = Counter(record for writer in writers for record in _records(every, writer))
        assert read(world.bucket) == expected, f"seed {seed}"


def published(sink: FileSink, upto: int, shard: StreamShard = SHARDS[0]):
    batch = spans({shard: RecordPosition(upto)}, sink.open())
    return sink.publish(Frame(list(_records(batch))), batch, "b")  # type: ignore[arg-type]


def test_a_store_that_ignores_conditions_is_refused_by_name():
    with pytest.raises(SinkRefused, match=r"takes writes whose condition does not hold .If-None-Match, If-Match"):
        sink_over(BucketInMemory(), ignores_conditions=True).open()


def test_files_without_a_ledger_are_refused():
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    del bucket.objects[PREFIX + HEAD_KEY]
    with pytest.raises(SinkRefused, match=r"holds files of commits, c.*-part\.json among them, but no ledger"):
        sink_over(bucket).open()


def test_a_published_file_whose_source_is_lost_stops_everything():
    bucket = BucketInMemory()

    def die_once_committed(operation: str) -> None:
        if operation == "copy":
            raise KeyboardInterrupt

    sink = sink_over(bucket)
    sink.open()
    with pytest.raises(KeyboardInterrupt):
        published(sink_over(bucket, before=die_once_committed), 3)
    (staged,) = [key for key in bucket.objects if STAGING_KEY in key]
    kept = bucket.objects.pop(staged)
    with pytest.raises(SinkRefused, match=r"is published, but the staged file of .+ is gone"):
        sink_over(bucket).open()
    bucket.objects[staged] = kept
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in (1, 2, 3))


def test_nothing_is_left_behind():
    bucket = BucketInMemory()
    for seed in range(5):
        world = S3World(random.Random(seed), PartitionedSink, bucket=bucket)
        for pid in (1, 2, 3):
            world.start(pid, SHARDS)
        world.play(0.05)
    bucket.later.clear()
    bucket.now_s += 2 * 24 * HOUR_S
    sink_over(bucket).open()
    assert [key for key in bucket.objects if STAGING_KEY in key] == []


def test_what_a_request_may_still_publish_is_not_deleted():
    """Nobody answers for a while, so the host gives up, and then the request is carried out after all."""
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    answers = itertools.chain([Fault.NONE] * 7, [Fault.LATE] * s3_journal.UNKNOWN_MAX, itertools.repeat(Fault.NONE))
    with pytest.raises(SinkError, match="no answer"):
        published(sink_over(bucket, fault=lambda: next(answers)), 6)
    for request in bucket.later:
        request()
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(6)}
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in range(1, 7))


def test_a_writer_that_slept_for_days_before_it_read_the_head_stages_anew():
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    is_late = False

    def sleeps(operation: str) -> None:
        nonlocal is_late
        if operation == "get" and any(STAGING_KEY in key for key in bucket.objects) and not is_late:
            is_late = True
            bucket.now_s += 3 * 24 * HOUR_S
            assert sink_over(bucket).open()

    with pytest.raises(SinkError, match="was cleared away as abandoned"):
        published(sink_over(bucket, before=sleeps), 6)
    assert is_late
    published(sink_over(bucket), 6)
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in range(1, 7))


def test_on_a_store_that_ignores_conditions_records_are_lost_or_doubled(monkeypatch):
    """What the proof must find if it is given such a store; the trial at the start is left out."""
    monkeypatch.setattr(S3Journal, "_try_store", lambda _: None)
    wrong = 0
    for seed in range(SEEDS):
        world = S3World(random.Random(seed), PartitionedSink, ignores_conditions=True)
        for pid in (1, 2, 3):
            world.start(pid, SHARDS)
        try:
            world.play(0.0)
        except AssertionError:
            wrong += 1
            continue
        expected = Counter((shard.shard, sequence) for shard in SHARDS for sequence in range(1, RECORDS + 1))
        wrong += read(world.bucket) != expected
    assert wrong > 0


def test_a_request_that_comes_a_week_late_finds_nothing_to_publish():
    """The staging area of its writer was swept, after the head was replaced."""
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    answers = iter([*[Fault.NONE] * 7, *[Fault.LATE] * 100])  # the store is tried, sources are deleted, a file uploaded
    sink = sink_over(bucket, fault=lambda: next(answers))
    with pytest.raises(SinkError, match="no answer"):
        published(sink, 6)
    assert [key for key in bucket.objects if STAGING_KEY in key], "nobody knows whether it is published"
    bucket.now_s += 7 * 24 * HOUR_S
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    assert [key for key in bucket.objects if STAGING_KEY in key] == []
    for request in bucket.later:
        request()
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    published(sink_over(bucket), 6)
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in range(1, 7))
