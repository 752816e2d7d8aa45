"""Several writers on one sink in a bucket, interleaved request by request from a seed, with deaths, zombies, lost and
late answers, requests that are carried out long after their writer has died, and a clock that goes in steps of hours.

Every record of every shard must be in the sink once and in no more than one place, whatever the schedule.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from mld.aws.objects import TRIES_MAX
from mld.processors.spark.commit import ledger, ledger_files
from mld.processors.spark.commit.journal import STAGING
from mld.processors.spark.commit.ledger_files import LEDGER
from mld.processors.spark.commit.s3_store import OLD_HEAD, S3Store
from mld.processors.spark.high_water_marks import spans
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.files import FileSink
from mld.processors.spark.writer_identity import WriterIdentity
from tests.support.tiers import sliced
from tests.twins.bucket import BucketInMemory, Fault, MemoryObjects
from tests.twins.store import Disk, MemoryStore
from tests.unit.spark.test_commit_races import (
    FLAT,
    NOBODY,
    PARTITIONED,
    RECORDS,
    SEEDS,
    SHARDS,
    Frame,
    Layout,
    PlainSink,
    World,
    _records,
)

PREFIX = "tables/clicks/"
LOST = 0.06
"""Of requests that write, how many get no answer."""
HOUR_S = 3600.0


class Uploads(MemoryStore):
    """What a process has in its memory of a disk, on its way to a bucket."""

    def __init__(self, target: S3Store) -> None:
        super().__init__(Disk())
        self._target = target

    def persist(self, path: str, files: Sequence[str]) -> None:
        for name in files:
            self._target.upload(f"{path}/{name}", self.read(f"{path}/{name}"))  # type: ignore[arg-type]


class Objects(MemoryObjects):
    def read_local(self, file: bytes) -> bytes:  # type: ignore[override]
        return file


class Store(S3Store):
    at_once = 1


class UntriedStore(Store):
    def prepare(self, sink: str) -> None:
        pass


def sink_over(
    bucket: BucketInMemory,
    writer: WriterIdentity = NOBODY,
    *,
    before: Callable[[str], None] = lambda _: None,
    fault: Callable[[], Fault] = lambda: Fault.NONE,
    ignores_conditions: bool = False,
    is_tried: bool = True,
    partition_by: Layout = FLAT,
) -> FileSink:
    """The real sink over a bucket in memory, with a few plain writes in place of Spark's part."""
    objects = Objects(bucket, before, fault, ignores_conditions=ignores_conditions)
    store = (Store if is_tried else UntriedStore)(objects, PREFIX)
    spec = SinkSpec("out", partition_by=partition_by, writer=writer, shared=writer is not NOBODY)
    return PlainSink(spec, store, Uploads(store))


@dataclass
class S3World(World):
    bucket: BucketInMemory = field(default_factory=BucketInMemory)
    ignores_conditions: bool = False

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
            partition_by=self.layout,
            ignores_conditions=self.ignores_conditions,
            is_tried=not self.ignores_conditions,
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
def small_ledgers(monkeypatch):
    """Keep so few entries that every run sweeps."""
    monkeypatch.setattr(ledger_files, "ENTRIES_KEPT", 2)
    monkeypatch.setattr(ledger_files, "ENTRIES_SWEPT_FROM", 4)


@pytest.mark.parametrize("layout", sliced([FLAT, PARTITIONED], PARTITIONED), ids=str)
def test_every_record_once_whatever_the_schedule(layout):
    for seed in range(2 * SEEDS):
        rng = random.Random(seed)
        world = S3World(rng, layout)
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
        sink_over(world.bucket, partition_by=layout).open()
        expected = Counter((shard.shard, sequence) for shard in SHARDS for sequence in range(1, RECORDS + 1))
        assert read(world.bucket) == expected, f"seed {seed}"


def test_writers_that_share_a_sink_write_everything_each():
    writers = [WriterIdentity("one", stream="s"), WriterIdentity("two", stream="s")]
    for seed in range(SEEDS // 2):
        world = S3World(random.Random(seed), FLAT)
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
    with pytest.raises(SinkRefused, match=r"takes writes whose condition does not hold .If-None-Match"):
        sink_over(BucketInMemory(), ignores_conditions=True).open()


def test_files_without_a_ledger_are_refused():
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    for key in [key for key in bucket.objects if LEDGER in key]:
        del bucket.objects[key]
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
    (staged,) = [key for key in bucket.objects if STAGING in key]
    kept = bucket.objects.pop(staged)
    with pytest.raises(SinkRefused, match=r"commit 1 is published but its file c0+1-part.json is nowhere; restore it"):
        sink_over(bucket).open()
    bucket.objects[staged] = kept
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in (1, 2, 3))


def test_nothing_is_left_behind():
    bucket = BucketInMemory()
    for seed in range(5):
        world = S3World(random.Random(seed), FLAT, bucket=bucket)
        for pid in (1, 2, 3):
            world.start(pid, SHARDS)
        world.play(0.05)
    bucket.later.clear()
    bucket.now_s += 2 * 24 * HOUR_S
    sink_over(bucket).open()
    assert [key for key in bucket.objects if STAGING in key] == []


def unanswered(bucket: BucketInMemory, requests: int) -> Callable[[], Fault]:
    """Of the requests that follow the upload of a file, so many are carried out later."""
    late = iter([Fault.LATE] * requests)

    def fault() -> Fault:
        is_uploaded = any(STAGING in key for key in bucket.objects)
        return next(late, Fault.NONE) if is_uploaded else Fault.NONE

    return fault


def test_what_a_request_may_still_publish_is_not_deleted():
    """Nobody answers for a while, so the host gives up, and then the request is carried out after all."""
    bucket = BucketInMemory()
    published(sink_over(bucket), 3)
    with pytest.raises(SinkError, match="no answer"):
        published(sink_over(bucket, fault=unanswered(bucket, TRIES_MAX)), 6)
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
        if operation == "list" and any(STAGING in key for key in bucket.objects) and not is_late:
            is_late = True
            bucket.now_s += 3 * 24 * HOUR_S
            assert sink_over(bucket).open()

    with pytest.raises(SinkError, match="was cleared away as abandoned"):
        published(sink_over(bucket, before=sleeps), 6)
    assert is_late
    published(sink_over(bucket), 6)
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in range(1, 7))


def test_on_a_store_that_ignores_conditions_records_are_lost_or_doubled():
    """What the proof must find if it is given such a store; the trial at the start is left out."""
    wrong = 0
    for seed in range(SEEDS):
        world = S3World(random.Random(seed), FLAT, ignores_conditions=True)
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
    sink = sink_over(bucket, fault=unanswered(bucket, 100))
    with pytest.raises(SinkError, match="no answer"):
        published(sink, 6)
    assert [key for key in bucket.objects if STAGING in key], "nobody knows whether it is published"
    bucket.now_s += 7 * 24 * HOUR_S
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    assert [key for key in bucket.objects if STAGING in key] == []
    for request in bucket.later:
        request()
    assert sink_over(bucket).open() == {SHARDS[0]: RecordPosition(3)}
    published(sink_over(bucket), 6)
    assert read(bucket) == Counter((SHARDS[0].shard, sequence) for sequence in range(1, 7))


def old_head(done: bool, version: int = 1) -> tuple[BucketInMemory, str]:
    """What mld 0.2.0 leaves: one object for the ledger, and a file that is in its place or on its way there."""
    token, bucket = f"{1_700_000_000:010x}-{'a' * 32}", BucketInMemory()
    moves = (ledger.FileMove("data/part.json", "c000000000007-part.json"),)
    entry = ledger.LedgerEntry(7, token, {NOBODY: {SHARDS[0]: RecordPosition(3)}}, moves, "parquet")
    sources = {"data/part.json": ["2/data/part.json", '"1"', 12]}
    head = {"application": "mld", "version": version, "done": done, "sweptTo": 0, "nonce": "n", "sources": sources}
    bucket.put(PREFIX + OLD_HEAD, json.dumps({**head, "entry": json.loads(ledger.encode(entry))}).encode())
    place = moves[0].target if done else f"{STAGING}/{token}/2/data/part.json"
    bucket.put(PREFIX + place, json.dumps([(SHARDS[0].shard, n) for n in (1, 2, 3)]).encode())
    return bucket, PREFIX + place


@pytest.mark.parametrize("done", [True, False])
def test_the_head_of_version_0_2_is_taken_over_at_whatever_request_its_taker_dies(done):
    for deaths in range(60):
        bucket, _ = old_head(done)
        left = deaths

        def dies(_: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        died = False
        try:
            sink_over(bucket, before=dies).open()
        except KeyboardInterrupt:
            died = True
        published(sink_over(bucket), 6)
        assert read(bucket) == Counter((SHARDS[0].shard, n) for n in range(1, 7)), deaths
        closed = json.loads(bucket.objects[PREFIX + OLD_HEAD][0])
        assert closed["version"] == 2, "mld 0.2.0 refuses it"
        if closed["entry"] is None:  # not so if the taker died right before
            for key in [key for key in bucket.objects if LEDGER in key]:
                del bucket.objects[key]
            with pytest.raises(SinkRefused, match="but no ledger"):
                sink_over(bucket).open()
        assert max(key for key in bucket.objects if "/c0" in key) >= f"{PREFIX}c000000000008-part.json"
        if not died:
            assert closed["entry"] is None
            return
    raise AssertionError("it does not end")


def test_a_head_of_version_0_2_that_cannot_be_taken_over_is_refused():
    bucket, staged = old_head(done=False)
    del bucket.objects[staged]
    with pytest.raises(SinkRefused, match=r"commit 7 is published but its file c0+7-part\.json is nowhere; restore it"):
        sink_over(bucket).open()
    bucket = BucketInMemory()
    bucket.put(PREFIX + OLD_HEAD, b"{}")
    with pytest.raises(
        SinkRefused, match=r"_mld/head\.json is damaged: KeyError.*; restore it, or use a new directory"
    ):
        sink_over(bucket).open()
