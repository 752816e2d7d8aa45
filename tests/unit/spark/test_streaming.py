"""The streaming mode without Spark: inbox and engine, over queries in memory."""

from __future__ import annotations

import json
import os
import shutil
import threading

import pytest

from mld.processors.spark.batch import page_file
from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.batch.spool import Spool
from mld.processors.spark.high_water_marks import RecordPosition, ShardSpan, StreamShard
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused
from mld.processors.spark.streaming import queries
from mld.processors.spark.streaming.engine import StreamingEngine
from mld.processors.spark.streaming.inbox import Inbox
from mld.processors.spark.streaming.queries import QUERY, SparkQueries
from tests.support.patience import PATIENCE_S
from tests.unit.spark.twins import Bed, Frame, MemoryHealth, MemorySink, settings_of

A, B = StreamShard("s", "a"), StreamShard("s", "b")
RECORD = SparkRecord(b"x", None, b"1", None, 0, b"s", b"a")
BOUND_S = PATIENCE_S


class MemoryQueries:
    """Takes every file of the inbox once, in the order of their times, as Spark does. Raises one fault per call."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.rows: list[tuple[str, int]] = []
        self.taken: set[int] = set()
        self.faults: list[Exception] = []
        self.blind = False
        self.starts = self.late = 0
        self.runs = False
        self.gate = threading.Event()
        self.gate.set()
        self.claims = 0

    def claim(self):
        self.claims += 1

    def newest(self):
        return max(self.taken, default=0)

    def start(self):
        self.starts += not self.runs
        self.runs = True

    def process(self):
        assert self.gate.wait(BOUND_S)
        if self.faults:
            self.runs = False
            raise self.faults.pop(0)
        for path in sorted(self._inbox.pending().values(), key=lambda path: path.stat().st_mtime):
            number = int(path.stem)
            if number not in self.taken and not self.blind:
                self.taken.add(number)
                self.rows += [(record.shard.decode(), int(record.sequence)) for _, record in page_file.rows(path)]

    def untaken(self, numbers):
        return set(numbers) - self.taken

    def trim(self, done):
        pass

    def late_rows(self):
        return self.late

    def watermarks(self):
        return {"out": "2026-01-01T00:00:00.000Z"}

    def stop(self):
        self.runs = False


class Worker:
    """A host of the streaming mode; `before`: the host that had the checkpoint, whose queries have what they took."""

    def __init__(self, directory, before=None) -> None:
        self.root = directory / "checkpoint"
        self.settings = settings_of(
            "mld.spark.mode = streaming", f"mld.spark.checkpoint = {self.root}", "mld.spark.attemptsMax = 3"
        )
        self.spool = Spool(directory / f"spool-{len(list(directory.iterdir()))}")
        self.inbox = Inbox(self.root, self.settings.writer)
        self.queries = before.queries if before else MemoryQueries(self.inbox)
        self.health = MemoryHealth()
        self.engine = StreamingEngine(self.settings, self.inbox, self.queries, self.health, self.spool, keep_s=0.0)
        self.engine.start()

    offer, run = Bed.offer, Bed.run


@pytest.fixture
def workers(tmp_path):
    made = []

    def make(before=None):
        if before is not None:
            before.engine.stop()
        made.append(Worker(tmp_path, before))
        return made[-1]

    yield make
    for worker in made:
        worker.queries.gate.set()
        worker.engine.stop()


def numbers(worker, shard="a"):
    return [number for name, number in worker.queries.rows if name == shard]


def test_a_batch_is_committed_when_the_queries_have_it(workers):
    one = workers()
    assert one.run(one.offer("a", range(1, 6)), one.offer("b", [7])).failed == {}
    assert (numbers(one), numbers(one, shard="b")) == ([1, 2, 3, 4, 5], [7])
    assert (one.engine.mark_of(A), one.engine.mark_of(B)) == (RecordPosition(5), RecordPosition(7))
    assert (one.inbox.pending(), one.queries.claims) == ({}, 1)


def test_late_rows_are_figures_of_the_batch_after_which_they_are_known(workers):
    one = workers()
    one.queries.late = 3
    first, second = (one.run(one.offer("a", [n])).figures for n in (1, 2))
    assert (first.late_rows, second.late_rows) == (3, 0)
    one.queries.late = 4
    assert one.run(one.offer("a", [3])).figures.late_rows == 1
    assert first.watermarks == {"out": "2026-01-01T00:00:00.000Z"}


def test_nothing_is_acknowledged_before_the_commit(workers):
    one = workers()
    one.queries.gate.clear()
    outcome = []
    running = threading.Thread(target=lambda: outcome.append(one.run(one.offer("a", [1]))))
    running.start()
    while not one.inbox.pending():
        pass
    running.join(0.05)
    assert (outcome, one.engine.mark_of(A)) == ([], None)
    one.queries.gate.set()
    running.join(BOUND_S)
    assert outcome[0].failed == {}


def test_what_the_inbox_has_already_is_dropped_and_yet_waited_for(workers):
    one = workers()
    one.run(one.offer("a", range(1, 6)))
    two = workers(one)
    assert two.engine.held(A) is None, "what is in the inbox has to be committed before it is acknowledged"
    two.run(two.offer("a", range(1, 6)))
    three = workers(two)
    three.run(three.offer("a", range(3, 9)))
    assert three.engine.held(A) == RecordPosition(8)
    three.run(three.offer("a", range(1, 4)), three.offer("b", [1]))
    assert (numbers(three), numbers(three, shard="b")) == ([*range(1, 9)], [1])


def test_what_was_in_the_inbox_and_not_committed_is_committed_by_the_next_host(workers):
    one = workers()
    one.queries.faults = [JobFailed("no")] * 3
    assert "no; a stateful query" in one.run(one.offer("a", [1, 2])).failed[A]
    two = workers(one)
    assert two.run(two.offer("a", [1, 2])).failed == {}
    assert (numbers(two), two.queries.starts) == ([1, 2], 4)


def test_an_inbox_that_was_restored_from_a_backup_refuses_what_does_not_follow_its_marks(workers):
    one = workers()
    one.run(one.offer("a", range(1, 6)))
    outcome = one.run(one.offer("a", range(11, 14), after=10), one.offer("b", [7], after=6))
    assert "sink inbox holds a up to 5, and the application has come to 10" in outcome.failed[A]
    assert ([*outcome.failed], numbers(one), numbers(one, "b")) == ([A], [1, 2, 3, 4, 5], [7])
    assert one.run(one.offer("b", [7], after=6)).failed == {}, "of which it never held anything"
    assert one.run(one.offer("a", range(4, 14), after=3)).failed == {}
    assert numbers(one) == [*range(1, 14)]


def test_the_inbox_of_another_stream_is_refused_and_keeps_what_it_has(workers):
    one = workers()
    one.run(one.offer("a", range(1, 6)))
    other = one.settings.writer._replace(created="2026-06-01T00:00:00.000Z")
    inbox = Inbox(one.root, other)
    with pytest.raises(
        SinkRefused, match=r"mld.spark.checkpoint = .* is written by application app.*another directory"
    ):
        inbox.open()
    with pytest.raises(SinkRefused):
        inbox.publish({A: ShardSpan(None, RecordPosition(3))}, [RECORD], "b")
    assert list(one.inbox.pending()) == []


def test_a_failing_query_is_tried_again_and_then_stops_all_shards_with_a_sentence(workers):
    one = workers()
    one.queries.faults = [JobFailed("division by zero")] * 2
    assert one.run(one.offer("a", [1])).failed == {}
    one.queries.faults = [JobFailed("division by zero")] * 3
    outcome = one.run(one.offer("a", [2]), one.offer("b", [1]))
    assert list(outcome.failed) == [A, B]
    assert "division by zero; a stateful query cannot leave out a record" in outcome.failed[A]
    assert (one.engine.mark_of(A), one.queries.runs) == (RecordPosition(1), False)
    assert one.run(one.offer("a", [2])).failed == {}, "corrected: nothing lost, nothing twice"
    assert numbers(one) == [1, 2]


def test_what_can_never_succeed_is_not_tried_again(workers):
    one = workers()
    one.queries.faults = [SinkRefused("its column n changes its type")]
    assert one.run(one.offer("a", [1])).failed == {A: "its column n changes its type"}
    assert one.queries.starts == 1


def test_a_sink_that_cannot_now_is_waited_for(workers):
    one = workers()
    one.queries.faults = [SinkError("no room")] * 5
    assert one.run(one.offer("a", [1])).failed == {}


def test_files_that_a_query_has_passed_over_are_not_acknowledged(workers):
    one = workers()
    one.queries.blind = True
    assert "have passed over 1 batches" in one.run(one.offer("a", [1])).failed[A]
    assert (one.engine.mark_of(A), list(one.inbox.pending())) == (None, [1])


def test_a_lost_time_is_given_back_before_a_query_sees_the_file(workers):
    one = workers()
    one.queries.faults = [JobFailed("no")] * 3
    one.run(one.offer("a", [1]))
    (path,) = one.inbox.pending().values()
    os.utime(path)
    assert one.run(one.offer("a", [2])).failed == {}
    assert numbers(one) == [1, 2]


@pytest.mark.parametrize("restarted", [False, True])
def test_an_inbox_without_its_ledger_is_refused(workers, restarted):
    one = workers()
    one.run(one.offer("a", [1]))
    shutil.rmtree(one.inbox.directory)
    two = workers(one) if restarted else one
    assert "restore the whole directory" in two.run(two.offer("a", [2])).failed[A]


class Published:
    """The batches of a query into a sink in memory."""

    def __init__(self, directory, *keys) -> None:
        self.sink = MemorySink("out")
        self.directory = directory
        self.settings = settings_of("mld.spark.mode = streaming", f"mld.spark.checkpoint = {directory}", *keys)
        self.queries = SparkQueries(None, self.settings, None, {"out": self.sink}, None, directory, directory / "inbox")
        self.new_checkpoint("one")

    def new_checkpoint(self, query):
        (self.directory / "queries" / "out").mkdir(parents=True, exist_ok=True)
        (self.directory / "queries" / "out" / "metadata").write_text(json.dumps({"id": query}))

    def batch(self, number, *of):
        self.queries._writer("out")(Frame([("a", n, b"") for n in of]), number)

    @property
    def numbers(self):
        return [number for _, number, _ in self.sink.rows]


def test_a_batch_that_is_repeated_is_in_the_sink_once_and_that_of_another_checkpoint_is_another(tmp_path):
    published = Published(tmp_path)
    for number, of in [(0, 1), (0, 1), (1, 2), (1, 2), (0, 1), (2, 3)]:
        published.batch(number, of)
    published.new_checkpoint("two")
    published.batch(0, 4)
    assert published.numbers == [1, 2, 3, 4]


def test_a_sink_that_was_restored_from_a_backup_refuses_the_batches_after_those_that_it_lacks(tmp_path):
    published = Published(tmp_path)
    published.sink.marks = {StreamShard(QUERY, "one"): RecordPosition(1)}
    with pytest.raises(SinkRefused, match="sink out holds batch 1 of its query and lacks those up to 3"):
        published.batch(3, 4)
    published.batch(2, 3)
    published.batch(3, 4)
    assert published.numbers == [3, 4]


def test_a_late_query_finds_its_batch_written(tmp_path):
    published = Published(tmp_path)
    late = StreamShard(QUERY, "one")
    inner = published.sink.publish

    def overtaken(frame, batch, batch_id):
        published.sink.marks[late] = RecordPosition(0)  # by the query after us, between our look and our commit
        return inner(frame, batch, batch_id)

    published.sink.publish = overtaken
    published.batch(0, 1)
    assert published.numbers == []


def test_a_batch_waits_for_room(tmp_path):
    published = Published(tmp_path)
    published.sink.faults = [SinkError("no room")] * 3
    published.batch(0, 1)
    assert published.numbers == [1]


def test_what_a_sink_refuses_is_the_reason_of_the_query(tmp_path):
    published = Published(tmp_path)
    published.sink.faults = [SinkRefused("its column n changes its type")]
    with pytest.raises(SinkRefused):
        published.batch(0, 1)
    assert str(published.queries._failure(None, "out", ValueError("STREAM_FAILED"))) == "its column n changes its type"


def test_stopped_queries_have_processed_nothing(tmp_path):
    queries = Published(tmp_path).queries
    with pytest.raises(JobFailed, match="were stopped"):
        queries.process()


def test_whoever_stops_the_queries_second_waits_until_they_have_stopped(tmp_path):
    """Otherwise the lead is given up, or the process ends, while queries still run in the JVM under their names."""
    order, entered, gate = [], threading.Event(), threading.Event()

    class Slow:
        def stop(self):
            entered.set()
            assert gate.wait(BOUND_S)
            order.append("stopped")

    def stop():
        queries.stop()
        order.append("returned")

    queries = Published(tmp_path).queries
    queries._running["out"] = Slow()
    first, second = threading.Thread(target=queries.stop), threading.Thread(target=stop)
    first.start()
    assert entered.wait(BOUND_S)
    second.start()
    second.join(0.1)
    gate.set()
    first.join(BOUND_S)
    second.join(BOUND_S)
    assert order == ["stopped", "returned"]


ENTRY = '{"path":"file:///c%%20d/inbox/%012d.parquet","timestamp":1000,"batchId":0}'


def log_of(directory, **files):
    directory.mkdir(parents=True)
    for name, of in files.items():
        text = "\n".join(["v1", *(ENTRY % number for number in of)])
        (directory / name.removeprefix("_").replace("_", ".")).write_text(text)
    return directory


def test_the_log_of_a_source_is_read_and_kept_short(tmp_path):
    log = log_of(tmp_path / "sources" / "0", _8=[8], _9_compact=range(1, 2001), _10=[2001], _11=[2002])
    assert queries.numbers(log) == set(range(1, 2003))
    assert queries.trim(log, 1990)
    assert queries.numbers(log) == set(range(1891, 2003))
    assert not queries.trim(log, 1990), "not for a few"
    assert queries.missing(tmp_path, [2002, 2003]) == {2003}


def test_every_source_of_the_inbox_has_to_have_a_file(tmp_path):
    log_of(tmp_path / "sources" / "0", _0=[1, 2])
    log_of(tmp_path / "sources" / "1", _0=[1])
    log_of(tmp_path / "sources" / "2")
    assert queries.missing(tmp_path, [1, 2]) == {2}
    assert queries.missing(tmp_path / "none", [1, 2]) == {1, 2}


@pytest.mark.parametrize("text", ["v2\n", "v1\n{}", "v1\nx"])
def test_a_log_that_is_written_in_another_way_is_refused(tmp_path, text):
    (tmp_path / "0").write_text(text)
    with pytest.raises(queries.LogUnknown, match=str(tmp_path)):
        queries.numbers(tmp_path)


def test_records_and_state_on_this_machine_are_for_this_user_alone(tmp_path):
    before = os.umask(0o022)
    try:
        inbox = Inbox(tmp_path / "root")
        inbox.open()
        inbox.make_home("queries")
        inbox.publish({StreamShard("s", "a"): ShardSpan(None, RecordPosition(1))}, [RECORD], "b")
    finally:
        os.umask(before)
    found = [tmp_path / "root", *(tmp_path / "root").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in found} == {0o700, 0o600}
