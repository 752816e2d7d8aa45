"""The engine over twins: every record in every sink once, whatever a publication ends in; poison is found and alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.processors.spark.batch import attempts, jobs
from mld.processors.spark.batch.attempts import Stopped
from mld.processors.spark.batch.jobs import SLICES_FIRST, SLICES_MAX
from mld.processors.spark.batch.page_file import SpoolError
from mld.processors.spark.batch.poison import NEIGHBOURS_MAX, POISON_IN_A_ROW_MAX
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session.failing_rows import PartitionFailure
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.sink_port import DataRefused, InputGone, JobFailed, SinkError, SinkRefused
from tests.unit.spark.twins import Bed, MemorySink, settings_of

A = StreamShard("s", "a")


def numbers(sink: MemorySink, shard: str = "a") -> list[int]:
    return [number for key, number, _ in sink.rows if key == shard]


def test_all_shards_in_one_publication(tmp_path):
    bed = Bed(tmp_path, settings_of())
    outcome = bed.run(bed.offer("a", range(1, 6)), bed.offer("b", range(1, 4)), bed.offer("a", range(6, 9)))
    out = bed.sinks["out"]
    assert outcome.failed == {}
    assert (numbers(out), numbers(out, "b"), out.publications) == ([*range(1, 9)], [1, 2, 3], 1)
    assert (bed.frames.handed, outcome.figures.jobs) == (1, 1)
    assert bed.engine.mark_of(A) == RecordPosition(8)


def test_a_delivery_that_is_repeated_is_trimmed(tmp_path):
    bed = Bed(tmp_path, settings_of())
    bed.run(bed.offer("a", range(1, 6)))
    bed.run(bed.offer("a", range(2, 9)), bed.offer("a", range(1, 4)))
    assert numbers(bed.sinks["out"]) == [*range(1, 9)]


def test_another_writer_moved_the_shard(tmp_path):
    bed = Bed(tmp_path, settings_of())
    bed.sinks["out"].marks = {A: RecordPosition(4)}
    assert bed.run(bed.offer("a", range(1, 6))).failed == {}
    assert numbers(bed.sinks["out"]) == [5]


def test_what_a_ledger_has_already_is_left_out_for_its_sink(tmp_path):
    ahead = MemorySink("ahead", marks={A: RecordPosition(3)})
    sinks = {"ahead": ahead, "out": MemorySink("out")}
    bed = Bed(tmp_path, settings_of(sinks=sinks), lambda records, batch: dict.fromkeys(sinks, records), sinks=sinks)
    assert bed.engine.mark_of(A) is None, "one of them holds nothing"
    assert bed.run(bed.offer("a", range(1, 6))).failed == {}
    assert (numbers(sinks["out"]), numbers(ahead)) == ([1, 2, 3, 4, 5], [4, 5])


def test_a_replay_that_the_ledger_has_wholly_is_known_as_held(tmp_path):
    """Also if a dead letter that lags has us look at it."""
    out = MemorySink("out", marks={A: RecordPosition(100)})
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), sinks={"out": out}, dead=dead)
    assert (bed.engine.held(A), bed.engine.mark_of(A)) == (RecordPosition(100), None)
    assert bed.run(bed.offer("a", range(1, 11))).failed == {}
    assert out.rows == []


@pytest.mark.parametrize("where", ["faults", "faults_after"])
def test_a_sink_that_cannot_now_is_waited_for(tmp_path, where):
    bed = Bed(tmp_path, settings_of())
    setattr(bed.sinks["out"], where, [SinkError("not now")] * 5 if where == "faults" else [SinkError("lost answer")])
    assert bed.run(bed.offer("a", range(1, 4))).failed == {}
    assert numbers(bed.sinks["out"]) == [1, 2, 3]


def test_a_sink_that_is_down_is_no_poison(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.sinks["out"].faults = [JobFailed("connection refused")] * 7
    assert bed.run(bed.offer("a", range(1, 4))).failed == {}
    assert (numbers(bed.sinks["out"]), dead.rows) == ([1, 2, 3], [])


@pytest.mark.usefixtures("one_attempt")
def test_a_row_that_a_sink_will_never_take_is_searched_for_although_it_can_be_computed(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.sinks["out"].refusal = DataRefused
    bed.sinks["out"].poison = lambda data: data == b"3"
    assert bed.run(bed.offer("a", range(1, 6))).failed == {}
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 2, 4, 5], [3])


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_cannot_be_opened_because_the_session_is_gone_is_not_waited_for(tmp_path):
    bed = Bed(tmp_path, settings_of())

    def opened():
        bed.health.gone = True
        raise SinkError("the JVM of Spark does not answer")

    bed.sinks["out"].faults = [JobFailed("a task was lost")]
    bed.sinks["out"].open = opened
    with pytest.raises(SessionGone):
        bed.run(bed.offer("a", [1]))


def test_what_can_never_succeed_stops_all_shards_of_the_batch(tmp_path):
    bed = Bed(tmp_path, settings_of())
    bed.sinks["out"].faults = [SinkRefused("column x is int")]
    outcome = bed.run(bed.offer("a", [1]), bed.offer("b", [1]))
    assert outcome.failed == {A: "column x is int", StreamShard("s", "b"): "column x is int"}
    assert bed.engine.mark_of(A) is None


def test_a_pipeline_that_fails_without_records_stops_the_shards_and_buries_nobody(tmp_path):
    attempts = []

    def transform(records, batch):
        attempts.append(batch.attempt)
        raise ValueError("no such table")

    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /d"), transform, dead=dead)
    outcome = bed.run(bed.offer("a", range(50)), bed.offer("b", [1]))
    assert "the pipeline failed: ValueError: no such table; correct the pipeline" in outcome.failed[A]
    assert (len(outcome.failed), attempts, dead.rows) == (2, [1, 2, 3, 1], [])


def test_a_plan_that_cannot_be_is_not_tried_twice(tmp_path):
    class AnalysisException(Exception):
        pass

    attempts = []

    def transform(records, batch):
        attempts.append(batch.attempt)
        raise AnalysisException("no column kind")

    bed = Bed(tmp_path, settings_of(), transform)
    assert "AnalysisException: no column kind; correct the pipeline" in bed.run(bed.offer("a", [1])).failed[A]
    assert attempts == [1]


def test_a_pipeline_that_fails_over_one_record(tmp_path):
    def transform(records, batch):
        if any(data == b"7" for _, _, data in records.records):
            raise KeyError("user")
        return records

    bed = Bed(tmp_path, settings_of(), transform)
    assert (
        "the record 7 of a fails: the pipeline failed: KeyError: 'user'" in bed.run(bed.offer("a", range(20))).failed[A]
    )
    assert numbers(bed.sinks["out"]) == [*range(7)]


def test_no_room_in_the_spool_is_waited_for(tmp_path):
    bed = Bed(tmp_path, settings_of())
    bed.run(bed.offer("a", range(5)))
    real, failures = bed.spool.written, [SpoolError("no room"), SpoolError("no room")]

    def written(records):
        if failures:
            raise failures.pop()
        return real(records)

    bed.spool.written = written
    assert bed.run(bed.offer("a", range(3, 9))).failed == {}
    assert numbers(bed.sinks["out"]) == [*range(9)]


@settings(max_examples=20)
@given(st.sets(st.integers(1, 40), max_size=4), st.integers(1, 12))
def test_poison_is_alone_in_the_dead_letter(tmp_path_factory, poison, width):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path_factory.mktemp("bed"), settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: int(data) in poison)
    offers = [bed.offer("a", range(n, min(n + width, 41))) for n in range(1, 41, width)]
    outcome = bed.run(*offers, bed.offer("b", range(50, 60)))
    assert outcome.failed == {}
    assert numbers(bed.sinks["out"]) == [n for n in range(1, 41) if n not in poison]
    assert numbers(dead) == sorted(poison)
    assert numbers(bed.sinks["out"], "b") == [*range(50, 60)]
    assert bed.sinks["out"].marks[A] == RecordPosition(40)


@pytest.mark.usefixtures("one_attempt")
def test_records_that_fail_are_buried_in_one_commit_and_the_others_written_in_one(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    poison = {*range(7, 5000, 250)}
    bed.poison(lambda data: int(data) in poison)
    assert bed.run(bed.offer("a", range(5000)), bed.offer("b", range(5000, 5100))).failed == {}
    assert numbers(dead) == sorted(poison)
    assert numbers(bed.sinks["out"]) == [n for n in range(5000) if n not in poison]
    assert (dead.publications, bed.sinks["out"].publications) == (1, 1)


@pytest.mark.usefixtures("one_attempt")
def test_what_was_buried_before_a_kill_is_no_proof_that_another_pipeline_fails_over_the_same_records(tmp_path):
    """The letters are there, the sinks have not got the rest; then the pipeline is changed."""
    dead = MemorySink("deadLetter")
    keys = ("mld.spark.deadLetter = /dead",)
    bed = Bed(tmp_path / "one", settings_of(*keys), dead=dead)
    bed.poison(lambda data: data in (b"3", b"7"))
    bed.sinks["out"].faults = [None, SessionGone("killed")]
    bed.sinks["out"].poison = lambda data: data in (b"3", b"7")
    with pytest.raises(SessionGone, match="killed"):
        bed.run(bed.offer("a", range(1, 11)))
    assert (numbers(dead), bed.sinks["out"].rows) == ([3, 7], [])
    sink = bed.sinks["out"]
    sink.faults = []
    second = Bed(tmp_path / "two", settings_of(*keys), dead=dead, sinks={"out": sink})
    second.poison(lambda data: data in (b"5", b"7"))
    assert second.run(second.offer("a", range(1, 11))).failed == {}
    assert numbers(sink) == [1, 2, 3, 4, 6, 8, 9, 10]
    assert numbers(dead) == [3, 7, 5]


def test_the_dead_letter_forgets_records_that_every_sink_has_got_past(tmp_path):
    dead = MemorySink("deadLetter")
    bed = two_sinks(tmp_path, dead=dead)
    bed.frames.poison = lambda data: data == b"2"
    for sink in bed.sinks.values():
        sink.poison = lambda data: data == b"2"
    bed.sinks["slow"].faults = [None, SinkError("not now")]
    bed.run(bed.offer("a", range(1, 5)))
    assert {one.shard for one in dead.retiring} == {"a#out#2", "a#slow#2"}


@pytest.mark.usefixtures("one_attempt")
def test_a_pipeline_that_fails_for_every_one_of_many_records_stops_the_shard(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: True)
    assert "and so do the 8 others" in bed.run(bed.offer("a", range(1, 201))).failed[A]
    assert dead.rows == []


@pytest.mark.usefixtures("one_attempt")
def test_more_rows_than_one_job_confirms_end_the_search_in_slices(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: True)
    asked = []

    def failing(frame, count):
        asked.append(count)
        assert len(asked) <= 2, "it narrows nothing down"
        return [PartitionFailure(row * count // len(frame.records), row, "x") for row in range(len(frame.records))]

    bed.frames.failing = failing
    assert bed.run(bed.offer("a", range(1, SLICES_MAX + 2))).failed.keys() == {A}
    assert len(asked) == 2 and dead.rows == []


@pytest.mark.usefixtures("one_attempt")
def test_rows_that_were_told_and_do_not_fail_alone_are_looked_for_in_slices(tmp_path):
    """As where a pipeline sorts rows before a function gets them; what was said first of a row is the reason."""
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    poison = {700, 900}
    bed.poison(lambda data: int(data) in poison)
    by_slices, asked = bed.frames.failing, []

    def failing(frame, count):
        asked.append(count)
        found = [one._replace(text=text) for text in ("first", "then") for one in by_slices(frame, count)]
        return [one._replace(row=5) for one in found] if len(frame.records) > 100 else found

    bed.frames.failing = failing
    assert bed.run(bed.offer("a", range(1000))).failed == {}
    assert numbers(dead) == sorted(poison) and all("first" in reason.decode() for *_, reason in dead.rows)
    assert asked[:2] == [SLICES_FIRST, 1]


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.usefixtures("one_attempt")
def test_a_pipeline_that_takes_records_together_is_searched_by_halves(tmp_path, slices):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.frames.can_slice = slices
    bed.poison(lambda data: data == b"6")
    if slices:  # as many partitions as there are slices, but others: an innocent one seems to fail
        bed.frames.failing = lambda frame, count: [PartitionFailure(0, None, "division by zero")]
    assert bed.run(bed.offer("a", range(1, 11))).failed == {}
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 2, 3, 4, 5, 7, 8, 9, 10], [6])


@pytest.mark.parametrize(
    ("shards", "each", "bytes_max", "pages"),
    [(64, 30, 8 << 20, 1), (64, 30, 1_000, 64), (8, 1, 8 << 20, 8), (9, 34, 8 << 20, 9), (9, 33, 8 << 20, 1)],
)
def test_many_small_pages_are_joined(tmp_path, monkeypatch, shards, each, bytes_max, pages):
    monkeypatch.setattr(jobs, "JOINED_BYTES_MAX", bytes_max)
    bed = Bed(tmp_path, settings_of())
    names = [f"s{number:02d}" for number in range(shards)]
    assert bed.run(*(bed.offer(name, range(1, each + 1)) for name in names)).failed == {}
    assert bed.frames.pages == [pages]
    assert all(numbers(bed.sinks["out"], name) == [*range(1, each + 1)] for name in names)
    assert [path.name for path in bed.spool.directory.glob("part-*")] == []


def test_small_pages_are_taken_as_they_are_if_a_full_disk_has_no_room_for_one_more(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "BACKOFF_S", 0.0)
    bed = Bed(tmp_path, settings_of())

    def full(*_: Any) -> Any:
        raise SpoolError("No space left on device")

    bed.spool.written = full
    names = [f"s{number:02d}" for number in range(64)]
    assert bed.run(*(bed.offer(name, range(1, 31)) for name in names)).failed == {}
    assert bed.frames.pages == [64]
    assert all(numbers(bed.sinks["out"], name) == [*range(1, 31)] for name in names)


def test_without_a_dead_letter_the_shard_stops_in_front_of_the_poison(tmp_path):
    bed = Bed(tmp_path, settings_of())
    bed.poison(lambda data: data == b"7")
    bed.sinks["out"].marks = {A: RecordPosition(2)}
    outcome = bed.run(bed.offer("a", range(1, 11)), bed.offer("b", range(20, 30)))
    assert list(outcome.failed) == [A]
    assert "the record 7 of a fails: division by zero" in outcome.failed[A]
    assert numbers(bed.sinks["out"]) == [3, 4, 5, 6]
    assert numbers(bed.sinks["out"], "b") == [*range(20, 30)]


def test_a_pipeline_that_works_for_no_record_fills_no_dead_letter(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: True)
    for _ in range(2):  # as when the shard is started again
        outcome = bed.run(bed.offer("a", range(1, 200)))
        assert f"the record 1 of a fails, and so do the {NEIGHBOURS_MAX} others that were tried" in outcome.failed[A]
    assert (dead.rows, bed.sinks["out"].rows) == ([], [])


def test_a_pipeline_that_breaks_after_it_has_worked_buries_nobody(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.run(bed.offer("a", range(1, 5)))
    bed.poison(lambda data: True)
    assert "record 5 of a fails, and so do the 5 others" in bed.run(bed.offer("a", range(5, 10))).failed[A]
    assert "record 5 of a fails, and so do the 1 others" in bed.run(bed.offer("a", [5])).failed[A]
    assert dead.rows == []


def test_a_record_alone_is_buried_once_another_one_has_gone_well(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: data == b"1")
    assert "there is no other one yet to tell" in bed.run(bed.offer("a", [1])).failed[A]
    assert dead.rows == []
    bed.run(bed.offer("b", [7]))
    assert bed.run(bed.offer("a", [1])).failed == {}
    assert numbers(dead) == [1]


def test_a_malformed_neighbour_is_no_evidence(tmp_path):
    bed, dead = json_bed(tmp_path)
    bed.poison(lambda data: not data.startswith(b"{bad"))
    assert "fails, and so do" in bed.run(bed.offer("a", range(1, 4), {2: b"{bad", 3: b"{bad"})).failed[A]
    assert dead.rows == []


def test_so_many_in_a_row_are_no_poison_even_if_others_go_well(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.run(bed.offer("a", [1000]), bed.offer("b", [1]))
    bed.sinks["out"].marks = {}
    bed.poison(lambda data: int(data) < 500)
    bed.run(bed.offer("b", [700]))
    outcome = bed.run(bed.offer("c", range(1, 200)))
    assert "record 21 of c fails, as did the 20 before it: division by zero" in outcome.failed[StreamShard("s", "c")]
    assert len(dead.rows) == POISON_IN_A_ROW_MAX


def two_sinks(directory: Path, *keys: str, dead: MemorySink | None = None) -> Bed:
    sinks = {"out": MemorySink("out"), "slow": MemorySink("slow")}
    letter = ["mld.spark.deadLetter = /dead"] if dead else []
    return Bed(
        directory,
        settings_of(*letter, *keys, sinks=sinks),
        lambda records, batch: dict.fromkeys(sinks, records),
        sinks=sinks,
        dead=dead,
    )


def test_a_sink_that_cannot_now_is_waited_for_and_the_others_are_not_asked_again(tmp_path):
    bed = two_sinks(tmp_path)
    bed.sinks["slow"].faults = [SinkError("it does not answer")] * 3
    assert bed.run(bed.offer("a", range(1, 4)), bed.offer("b", [1])).failed == {}
    for name in ("out", "slow"):
        assert (numbers(bed.sinks[name]), numbers(bed.sinks[name], "b")) == ([1, 2, 3], [1])
    assert bed.sinks["out"].publications == 1


def test_a_host_does_not_start_if_a_sink_cannot_be_opened(tmp_path):
    bed = two_sinks(tmp_path)
    bed.sinks["slow"].openings = [SinkError("it is down")]
    with pytest.raises(SinkError, match="it is down"):
        bed.use(bed.spool)


def test_a_sink_that_fails_in_the_midst_of_a_search_misses_nothing(tmp_path):
    """Parts of a batch that it has not got are never skipped, though it could take the later ones."""
    dead = MemorySink("deadLetter")
    bed = two_sinks(tmp_path, dead=dead)
    for sink in bed.sinks.values():
        sink.poison = lambda data: data == b"6"
    bed.frames.poison, bed.frames.can_slice = lambda data: data == b"6", False
    bed.sinks["slow"].faults = [None, None, SinkError("not now")]
    bed.run(bed.offer("a", range(1, 9)))
    assert numbers(bed.sinks["out"]) == [1, 2, 3, 4, 5, 7, 8]
    assert numbers(bed.sinks["slow"]) == [1, 2, 3, 4, 5, 7, 8]
    assert [data for _, _, data in dead.rows] == [b"division by zero"], "both miss it"


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_goes_down_in_the_midst_of_a_search_buries_nobody(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: data == b"2")
    down = JobFailed("connection refused")
    bed.sinks["out"].faults = [None, None, None, None, None, down, down, down]
    assert bed.run(bed.offer("a", range(1, 9))).failed == {}
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 3, 4, 5, 6, 7, 8], [2])


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_comes_back_and_refuses_a_record_is_not_waited_for(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.run(bed.offer("a", [1]))
    out = bed.sinks["out"]
    out.poison, out.refusal = lambda data: data == b"3", DataRefused
    out.faults = [JobFailed("connection refused")] * 2
    assert bed.run(bed.offer("a", [2, 3, 4])).failed == {}
    assert (numbers(out), numbers(dead)) == ([1, 2, 4], [3])


@pytest.mark.parametrize("before", range(10))
@pytest.mark.usefixtures("one_attempt")
def test_a_spool_that_is_full_in_the_midst_of_a_search_is_waited_for(tmp_path, before):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: data == b"3")
    offer, real, calls = bed.offer("a", range(1, 6)), bed.spool.written, iter(range(100))

    def written(records):
        if next(calls) == before:
            raise SpoolError("no room")
        return real(records)

    bed.spool.written = written
    assert bed.run(offer).failed == {}
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 2, 4, 5], [3])


@pytest.mark.parametrize("before", range(8))
def test_a_record_is_buried_for_the_sink_that_has_refused_it_and_not_for_one_that_failed_by_chance(tmp_path, before):
    dead = MemorySink("deadLetter")
    bed = two_sinks(tmp_path, dead=dead)
    bed.run(bed.offer("a", [1]))
    out, slow = bed.sinks["out"], bed.sinks["slow"]
    out.poison = lambda data: data == b"3"
    slow.poison = lambda data: data == b"4"
    out.refusal = slow.refusal = DataRefused
    slow.faults = [*[None] * before, JobFailed("a task was lost")]
    assert bed.run(bed.offer("a", [2, 3, 4])).failed == {}
    assert (numbers(out), numbers(slow)) == ([1, 2, 4], [1, 2, 3])
    assert [data for _, _, data in dead.rows] == [b"division by zero for out", b"division by zero for slow"]


@settings(max_examples=25)
@given(st.data())
def test_whatever_sinks_do_each_holds_every_record_once(tmp_path_factory, data):
    """Two sinks and a dead letter with faults of all kinds; batches that come again; poison of one sink or of both."""
    dead = MemorySink("deadLetter")
    bed = two_sinks(tmp_path_factory.mktemp("bed"), dead=dead)
    poison = {name: data.draw(st.sets(st.integers(1, 30), max_size=3), label=name) for name in bed.sinks}
    bed.frames.poison = lambda one: False
    kinds = st.sampled_from([None, None, None, SinkError("not now"), JobFailed("a task was lost")])
    for name, sink in bed.sinks.items():
        sink.poison = lambda one, mine=poison[name]: int(one) in mine
        sink.refusal = DataRefused
        sink.faults = data.draw(st.lists(kinds, max_size=8))
        sink.faults_after = data.draw(st.lists(kinds, max_size=8))
    dead.faults = data.draw(st.lists(st.sampled_from([None, SinkError("no room")]), max_size=4))
    bed.run(bed.offer("b", [1, 2]))
    at = stopped = 0
    while at < 30 and stopped < 20:
        width = data.draw(st.integers(1, 12))
        offer = bed.offer("a", range(max(1, at - data.draw(st.integers(0, 4))), min(at + width, 30) + 1))
        at += width
        if bed.run(offer).failed:
            at, stopped = 0, stopped + 1  # the shard starts again from its checkpoint
            bed.run(bed.offer("b", range(2 + stopped, 4 + stopped)))
    assert stopped < 20
    for name, sink in bed.sinks.items():
        assert numbers(sink) == [n for n in range(1, 31) if n not in poison[name]]
    both = poison["out"] | poison["slow"]
    assert set(numbers(dead)) == both
    for name in bed.sinks:
        mine = [(n, said) for shard, n, said in dead.rows if shard == "a"]
        letters = [n for n, said in mine if b" for " not in said or said.endswith(name.encode())]
        assert sorted(letters) == sorted(poison[name])
    bed.spool.close()


@pytest.mark.parametrize("name", ["deadLetter", "out"])
@pytest.mark.usefixtures("one_attempt")
def test_a_burial_that_fails_is_waited_for(tmp_path, name):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.poison(lambda data: data == b"2")
    sinks = {"deadLetter": dead, "out": bed.sinks["out"]}
    real = sinks[name].publish

    def publish(frame, batch, batch_id):
        if name == "deadLetter" or frame is None:
            sinks[name].publish = real
            raise SinkError("no room")
        return real(frame, batch, batch_id)

    sinks[name].publish = publish
    assert bed.run(bed.offer("a", range(1, 5))).failed == {}
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 3, 4], [2])


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_refuses_every_row_is_not_believed(tmp_path):
    """Such as a table that somebody has given a column that no record has."""
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.run(bed.offer("a", [1]), bed.offer("b", [1]))
    bed.sinks["out"].refusal = DataRefused
    bed.sinks["out"].poison = lambda data: True
    for shard in ("a", "b", "a"):
        outcome = bed.run(bed.offer(shard, range(2, 30)))
        assert "and sink out has taken none since 3 others were buried: division by zero" in str(outcome.failed)
    assert len(dead.rows) == 3
    bed.sinks["out"].poison = lambda data: data == b"9"
    assert bed.run(bed.offer("a", range(2, 30)), bed.offer("b", range(2, 30))).failed == {}


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_has_taken_nothing_yet_is_not_believed(tmp_path):
    dead = MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    bed.sinks["out"].refusal = DataRefused
    bed.sinks["out"].poison = lambda data: data == b"1"
    assert "has taken no other one yet" in bed.run(bed.offer("a", range(1, 5))).failed[A]
    assert bed.run(bed.offer("a", range(1, 5)), bed.offer("b", [7])).failed == {}, "another shard shows that it does"
    assert numbers(dead) == [1]


def refusing(
    directory: Path, refused: Callable[[int], bool], kind: type[JobFailed] = JobFailed
) -> tuple[Bed, Any, Any]:
    """A sink that does not take some records, which can be computed."""
    dead = MemorySink("deadLetter")
    bed = Bed(directory, settings_of("mld.spark.deadLetter = /dead"), dead=dead)
    out = bed.sinks["out"]
    out.refusal, out.poison = kind, lambda data: refused(int(data))
    return bed, out, dead


def test_a_record_that_a_sink_never_takes_for_a_reason_that_nobody_knows_is_found_and_all_others_are_there(tmp_path):
    bed, out, dead = refusing(tmp_path, lambda number: number == 13)
    assert bed.run(bed.offer("a", range(1, 31)), bed.offer("b", range(50, 60))).failed == {}
    assert (numbers(out), numbers(dead)) == ([n for n in range(1, 31) if n != 13], [13])


def test_all_other_shards_are_committed_before_the_search_among_the_records_of_one(tmp_path):
    bed, out, _ = refusing(tmp_path, lambda number: number == 13)
    names = [f"s{number:02d}" for number in range(16)]
    offers = [bed.offer(name, range(100, 105)) for name in names]
    assert bed.run(bed.offer("a", range(1, 31)), *offers).failed == {}
    assert [shard for shard, _, _ in out.rows[: 5 * len(names)]] == [name for name in names for _ in range(5)]
    assert out.publications < 2 * len(names)


@pytest.mark.usefixtures("one_attempt")
def test_a_sink_that_takes_nothing_for_a_reason_that_nobody_knows_buries_nobody_and_stops_after_a_while(tmp_path):
    bed, out, dead = refusing(tmp_path, lambda number: False)
    assert bed.run(bed.offer("a", [1])).failed == {}
    out.poison = lambda data: True
    outcome = bed.run(bed.offer("a", range(2, 30)), *(bed.offer(f"s{number:02d}", range(9)) for number in range(40)))
    assert all("has taken no other one yet" in reason for reason in outcome.failed.values())
    assert (len(outcome.failed), dead.rows, len(out.rows)) == (41, [], 1)
    assert outcome.figures.attempts < 350
    out.poison = lambda data: False
    assert bed.run(bed.offer("a", range(2, 30))).failed == {}


def test_a_search_ends_and_goes_on_where_it_was_when_the_records_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr("mld.processors.spark.batch.poison.ATTEMPTS_IN_A_SEARCH_MAX", 60)
    bed, out, dead = refusing(tmp_path, lambda number: number % 2 == 0, DataRefused)
    runs = 0
    while reason := bed.run(bed.offer("a", range(1, 101))).failed.get(A):
        assert "60 attempts were made to find what fails" in reason
        runs += 1
    assert 2 <= runs < 10
    assert (numbers(out), numbers(dead)) == ([*range(1, 101, 2)], [*range(2, 101, 2)])


def test_one_malformed_record_does_not_have_the_batch_read_again(tmp_path):
    bed, dead = json_bed(tmp_path)
    bed.run(bed.offer("a", range(1, 1001), {500: b"{bad"}))
    assert numbers(dead) == [500]
    assert bed.frames.read < 1050


def test_many_malformed_records_are_all_found(tmp_path):
    bed, dead = json_bed(tmp_path)
    bad = dict.fromkeys([*range(3, 900, 7)], b"{bad")
    bed.run(bed.offer("a", range(1, 1001), bad), bed.offer("b", range(1, 5), {2: b"{bad"}))
    assert (numbers(dead), numbers(dead, "b")) == (sorted(bad), [2])


def json_bed(directory: Path, **more: Any) -> tuple[Bed, MemorySink]:
    dead = MemorySink("deadLetter")
    keys = ("mld.spark.deadLetter = /dead", "mld.spark.format = json", "mld.spark.schema = a INT")
    return Bed(directory, settings_of(*keys), dead=dead, **more), dead


def test_malformed_records_go_to_the_dead_letter_once_and_good_batches_cost_no_second_job(tmp_path):
    bed, dead = json_bed(tmp_path)
    bad = {3: b"{bad"}
    bed.run(bed.offer("a", range(1, 6), bad))
    assert bed.run(bed.offer("a", range(2, 9), bad)).failed == {}
    assert bed.run(bed.offer("a", range(9, 12))).figures.jobs == 1
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([1, 2, *range(4, 12)], [3])


def test_a_dead_letter_that_was_lost_with_a_crash_is_made_up_for(tmp_path):
    out = MemorySink("out", marks={A: RecordPosition(5)})  # committed, and then the writer died
    bed, dead = json_bed(tmp_path, sinks={"out": out})
    bed.run(bed.offer("a", range(1, 6), {3: b"{bad"}))
    assert (numbers(out), numbers(dead)) == ([], [3])


def test_a_pipeline_that_stops_early_hides_no_malformed_record(tmp_path):
    bed, dead = json_bed(tmp_path, transform=lambda records, batch: None)
    bed.run(bed.offer("a", range(1, 6), {2: b"{bad"}))
    assert numbers(dead) == [2]


def test_a_pipeline_without_sinks_is_not_run_twice_over_a_record(tmp_path):
    seen = []
    bed = Bed(tmp_path, settings_of(sinks=()), lambda records, batch: seen.extend(records.records))
    bed.run(bed.offer("a", range(1, 4)))
    bed.run(bed.offer("a", range(2, 6)))
    assert [number for _, number, _ in seen] == [1, 2, 3, 4, 5]


def test_a_session_that_is_gone_ends_the_host(tmp_path):
    bed = Bed(tmp_path, settings_of())

    def gone() -> None:
        bed.health.gone = True
        raise JobFailed("connection refused")

    bed.poison(lambda data: gone())
    with pytest.raises(SessionGone):
        bed.run(bed.offer("a", [1]))


def test_a_wait_is_ended_by_stop(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "BACKOFF_S", 30.0)
    bed = Bed(tmp_path, settings_of())
    bed.sinks["out"].faults = [SinkError("disk full")]
    threading.Timer(0.05, bed.engine.stop).start()
    with pytest.raises(Stopped):
        bed.run(bed.offer("a", [1]))


def test_no_batch_of_another_start_has_the_same_id(tmp_path):
    seen = []

    def transform(records, batch):
        seen.append((batch.id, batch.attempt))
        return records

    for start in ("one", "two"):
        bed = Bed(tmp_path / start, settings_of(), transform)
        bed.sinks["out"].faults = [JobFailed("a task")]
        bed.run(bed.offer("a", [1]))
        bed.run(bed.offer("a", [2]))
    ids = [one for one, attempt in seen if attempt == 1]
    assert len(set(ids)) == 4 and [attempt for _, attempt in seen] == [1, 2, 1, 1, 2, 1]
    assert seen[0][0] == seen[1][0], "another attempt at a batch has its id"


# --- whatever happens -------------------------------------------------------------------------------------------------


DEAD_OF_JSON = ("mld.spark.deadLetter = /dead", "mld.spark.format = json", "mld.spark.schema = a INT")


@settings(max_examples=25)
@given(st.data())
def test_whatever_happens_each_record_is_there_once_and_in_order(tmp_path_factory, data):
    """Faults before and after a publication, poison, malformed records, deliveries that are repeated, and another
    worker that takes the shard."""
    kinds = st.lists(st.sampled_from([None, None, None, SinkError("not now"), JobFailed("a task")]), max_size=8)
    out = MemorySink("out", faults=data.draw(kinds), faults_after=data.draw(kinds))
    dead = MemorySink("deadLetter", faults=data.draw(st.lists(st.sampled_from([None, SinkError("full")]), max_size=3)))
    bed = Bed(tmp_path_factory.mktemp("bed"), settings_of(*DEAD_OF_JSON), sinks={"out": out}, dead=dead)
    last = 40
    bad = data.draw(st.sets(st.integers(1, last), max_size=3), label="malformed")
    poison = data.draw(st.sets(st.integers(1, last), max_size=2), label="poison") - bad
    texts = dict.fromkeys(bad, b"{bad")
    bed.poison(lambda one: not one.startswith(b"{") and int(one) in poison)
    bed.run(bed.offer("b", [1001, 1002]))  # evidence, should a record be to blame
    at = rounds = 0
    while at < last:
        rounds += 1
        assert rounds < 200
        if data.draw(st.integers(0, 9)) == 0 and (mark := out.marks.get(A)) is not None and mark.sequence < last:
            number = mark.sequence + 1  # another worker writes one record more
            if number not in poison | bad:
                out.rows.append(("a", number, b"%d" % number))
                out.marks = {**out.marks, A: RecordPosition(number)}
        first = max(1, at + 1 - data.draw(st.integers(0, 4)))
        at = min(last, at + data.draw(st.integers(1, 12)))
        if bed.run(bed.offer("a", range(first, at + 1), texts)).failed:
            at = 0  # the shard starts again from its checkpoint
            bed.run(bed.offer("b", range(1002 + rounds, 1004 + rounds)))
    assert numbers(out) == [n for n in range(1, last + 1) if n not in poison | bad]
    assert sorted(numbers(dead)) == sorted(poison | bad)
    bed.engine.stop()
    bed.spool.close()


# --- sinks that go back in time ---------------------------------------------------------------------------------------


def test_a_sink_that_was_restored_from_a_backup_refuses_what_does_not_follow_its_mark(tmp_path):
    """It was at 200 when the daemon checkpointed that; the copy is at 100, and the shard is read on after 200."""
    bed = Bed(tmp_path, settings_of())
    out = bed.sinks["out"]
    out.marks = {A: RecordPosition(100)}
    bed.engine.start()
    outcome = bed.run(bed.offer("a", range(201, 204), after=200), bed.offer("b", [1]))
    assert list(outcome.failed) == [A]
    for words in ("up to 100", "come to 200", "mld reset FILE --shard a --to 100", "-D mld.spark.onGap=accept"):
        assert words in outcome.failed[A]
    assert (numbers(out), numbers(out, "b"), out.marks[A]) == ([], [1], RecordPosition(100))
    assert bed.run(bed.offer("a", range(98, 204))).failed == {}, "after a reset to the mark"
    assert numbers(out) == [*range(101, 204)]


@pytest.mark.parametrize("at", ["between batches", "in a batch", "in the search for poison"])
@pytest.mark.usefixtures("one_attempt")
def test_a_database_that_fails_over_to_a_standby_that_lags_takes_no_batch_that_does_not_follow(tmp_path, at):
    """What was not checkpointed yet is delivered again, and then nothing is missing."""
    out, dead = MemorySink("out"), MemorySink("deadLetter")
    bed = Bed(tmp_path, settings_of("mld.spark.deadLetter = /d"), dead=dead)
    bed.sinks = {"out": out}
    bed.use(bed.spool)
    bed.run(bed.offer("a", range(1, 11)))
    bed.run(bed.offer("a", range(11, 21), after=10))
    seen: list[bytes] = []

    def fail_over():
        out.rows, out.marks = out.rows[:5], {A: RecordPosition(5)}

    def loses_its_connection(data):
        seen.append(data)
        if len(seen) == 1:
            fail_over()
            raise SinkError("the connection was lost")

    def is_poison(data):
        seen.extend([data] if data == b"25" else [])
        if len(seen) == 3 and out.marks != {A: RecordPosition(5)}:
            fail_over()
        return data == b"25"

    offer = bed.offer("a", range(21, 31), after=20)
    if at == "between batches":
        fail_over()
    elif at == "in a batch":
        out.poison = loses_its_connection
    else:
        bed.poison(is_poison)
    failed = bed.run(offer).failed
    assert "holds a up to 5, and the application has come to 20" in failed[A]
    assert numbers(out) == [1, 2, 3, 4, 5]
    bed.poison(lambda data: False)
    assert bed.run(bed.offer("a", range(4, 31), after=3)).failed == {}
    assert numbers(out) == [*range(1, 31)]


def test_a_gap_that_is_accepted_is_said_and_passed(tmp_path, caplog):
    bed = Bed(tmp_path, settings_of("mld.spark.onGap = accept"))
    bed.sinks["out"].marks = {A: RecordPosition(100)}
    assert bed.run(bed.offer("a", range(201, 204), after=200)).failed == {}
    assert numbers(bed.sinks["out"]) == [201, 202, 203]
    assert "a gap is accepted: sink out holds a up to 100, and the application has come to 200" in caplog.text


def test_a_shard_that_another_worker_has_written_meanwhile_has_no_gap(tmp_path):
    bed = Bed(tmp_path, settings_of())
    out = bed.sinks["out"]
    bed.run(bed.offer("a", range(1, 6)))
    out.marks = {A: RecordPosition(200)}
    assert bed.run(bed.offer("a", range(201, 204), after=200)).failed == {}
    assert numbers(out) == [*range(1, 6), 201, 202, 203]


def test_an_application_that_comes_from_another_processor_begins_at_its_checkpoints_and_is_told(tmp_path, caplog):
    """Shard after shard, as its leases move: a mark of one shard says nothing of another one."""
    bed = Bed(tmp_path, settings_of())
    out = bed.sinks["out"]
    assert bed.run(bed.offer("a", range(101, 104), after=100)).failed == {}
    assert bed.run(bed.offer("b", range(51, 54), after=50)).failed == {}
    assert (numbers(out), numbers(out, "b")) == ([101, 102, 103], [51, 52, 53])
    assert "sink out holds nothing of 1 shards yet, and begins with a after 100" in caplog.text
    assert "begins with b after 50" in caplog.text


def test_a_second_sink_that_is_new_begins_and_gets_what_it_misses(tmp_path):
    sinks = {"out": MemorySink("out", marks={A: RecordPosition(100)}), "new": MemorySink("new")}
    bed = Bed(tmp_path, settings_of(sinks=sinks), lambda records, batch: dict.fromkeys(sinks, records), sinks=sinks)
    bed.engine.start()
    assert bed.run(bed.offer("a", range(101, 104), after=100)).failed == {}
    sinks["new"].faults = [SinkError("down")]
    first, second = bed.offer("a", range(104, 106), after=103), bed.offer("a", range(106, 108), after=105)
    assert bed.run(first, second).failed == {}
    assert numbers(sinks["new"]) == numbers(sinks["out"]) == [*range(101, 108)]


def test_a_changed_type_stops_the_shards_instead_of_draining_them_into_the_dead_letter(tmp_path):
    keys = ("mld.spark.deadLetter = /dead", "mld.spark.format = text")
    dead, bad = MemorySink("deadLetter"), dict.fromkeys(range(51, 201), b"{bad")
    bed = Bed(tmp_path, settings_of(*keys), dead=dead)
    for _ in range(3):  # as a child that is restarted brings them again, when the sinks have the good ones
        outcome = bed.run(bed.offer("a", range(1, 201), bad))
        assert "150 of the last 200 records are malformed" in outcome.failed[A]
        assert "start once with -D mld.spark.malformedShareMax=1" in outcome.failed[A]
        assert (numbers(bed.sinks["out"]), dead.rows, bed.engine.mark_of(A)) == ([*range(1, 51)], [], None)
    bed = Bed(tmp_path, settings_of(*keys, "mld.spark.malformedShareMax = 1"), dead=dead, sinks=bed.sinks)
    assert bed.run(bed.offer("a", range(1, 201), bad)).failed == {}
    assert (numbers(bed.sinks["out"]), len(dead.rows)) == ([*range(1, 51)], 150)


def test_what_setup_has_read_is_read_again_when_its_files_are_gone(tmp_path):
    asked = []

    def setup(session):
        asked.append(session)
        if len(asked) == 2:
            raise ValueError("it is being written")

    bed = Bed(tmp_path, settings_of())
    pipeline = bed.engine._jobs._pipeline
    pipeline._module, session = SimpleNamespace(setup=setup), SimpleNamespace(catalog=SimpleNamespace(clearCache=int))
    pipeline.setup(session)
    bed.sinks["out"].faults = [InputGone("it is gone"), InputGone("it is gone"), SinkError("not now")]
    assert bed.run(bed.offer("a", range(1, 4))).failed == {}
    assert (numbers(bed.sinks["out"]), asked) == ([1, 2, 3], [session] * 3)
