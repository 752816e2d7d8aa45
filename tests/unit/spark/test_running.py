"""What runs when a session ends: found by ever smaller parts that run alone, others first; innocents are forgotten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mld.processors.spark.batch.running import FILE_BYTES_MAX, PARTS, Running, RunningSpan, cut
from mld.processors.spark.positions import RecordPosition, StreamShard
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.sink_port import JobFailed
from tests.unit.spark.twins import Bed, MemorySink, settings_of

A = StreamShard("s", "a")
KEYS = ("mld.spark.deadLetter = /dead", "mld.spark.format = json", "mld.spark.schema = a INT")


class Lives:
    """Hosts of one daemon, each with a session of its own, over the same sinks. A job over a record of `killers` ends
    the session, whatever it is run for."""

    def __init__(self, directory: Path, killers: set[int], *keys: str) -> None:
        self.directory, self.killers, self.keys = directory, killers, keys or KEYS
        self.out, self.dead = MemorySink("out"), MemorySink("deadLetter")
        self.ends = 0
        self.of_sink = False
        """Whether they do so only where they are written."""
        self.hangs = False

    def live(self, records: dict[str, range], end_at: int | None = None) -> dict[StreamShard, str] | None:
        """Have the shards deliver everything from their beginning; None if the session ends."""
        settings = settings_of(*self.keys)
        bed = Bed(self.directory / str(self.ends), settings, dead=self.dead, sinks={"out": self.out})
        bed.running = Running(self.directory / "running.json")
        bed.use(bed.spool)

        def meet(data: bytes) -> bool:
            if int(data) in self.killers or int(data) == end_at:
                if self.hangs:
                    bed.health.hung = True
                    raise JobFailed("the job was cancelled")
                bed.health.gone = True
                raise SessionGone("the JVM has ended")
            return False

        self.out.poison = meet
        if not self.of_sink:
            bed.frames.poison = meet
        try:
            return bed.run(*(bed.offer(shard, numbers) for shard, numbers in records.items())).failed
        except SessionGone:
            self.ends += 1
            return None

    def live_on(self, records: dict[str, range]) -> dict[StreamShard, str]:
        while (failed := self.live(records)) is None:
            assert self.ends < 30, "it is not found"
        return failed


def numbers(sink: MemorySink, shard: str = "a") -> list[int]:
    return [number for key, number, _ in sink.rows if key == shard]


@pytest.mark.parametrize("killer", [1, 700, 999])
def test_a_record_that_ends_the_session_is_a_dead_letter_after_few_ends_and_all_others_are_there(tmp_path, killer):
    lives = Lives(tmp_path, {killer})
    assert lives.live_on({"a": range(1, 1001), "b": range(5000, 5010)}) == {}
    assert numbers(lives.out) == [n for n in range(1, 1001) if n != killer]
    assert numbers(lives.out, "b") == [*range(5000, 5010)]
    ((_, letter, why),) = lives.dead.rows
    assert letter == killer and b"the session of Spark has ended" in why
    assert lives.ends <= 7
    assert lives.dead.marks[A] >= RecordPosition(killer), "nobody decodes it again"


def test_it_is_no_letter_before_another_record_shows_that_a_session_lives(tmp_path):
    lives = Lives(tmp_path, {1})
    assert "there is no other one yet to tell" in lives.live_on({"a": range(1, 2)})[A]
    assert lives.dead.rows == []
    assert lives.live({"a": range(1, 3)}) == {}
    assert ([number for _, number, _ in lives.dead.rows], numbers(lives.out)) == ([1], [2])


def test_a_record_that_is_alone_in_its_batch_anyway_is_not_blamed_for_three_ends_of_other_reasons(tmp_path):
    lives = Lives(tmp_path, set())
    assert lives.live({"a": range(1, 2)}) == {}
    for _ in range(3):
        assert lives.live({"a": range(1, 3)}, end_at=2) is None
    assert lives.live({"a": range(1, 4)}) == {}
    assert (numbers(lives.out), lives.dead.rows) == ([1, 2, 3], [])


def test_two_of_them_beside_each_other_are_found_though_each_is_tried_as_evidence_against_the_other(tmp_path):
    lives = Lives(tmp_path, {1, 2})
    assert lives.live_on({"a": range(1, 101)}) == {}
    assert ([number for _, number, _ in lives.dead.rows], numbers(lives.out)) == ([1, 2], [*range(3, 101)])


def test_a_sink_that_ends_every_session_gets_nobody_buried(tmp_path):
    """All records can be computed, and nothing has ever been written."""
    lives = Lives(tmp_path, set(range(1, 101)))
    lives.of_sink = True
    assert "no other one has been written since" in lives.live_on({"a": range(1, 101)})[A]
    assert (lives.dead.rows, lives.out.rows) == ([], [])


def test_a_record_that_ends_the_session_only_while_it_is_written_is_a_letter_as_others_were_written(tmp_path):
    lives = Lives(tmp_path, {30})
    lives.of_sink = True
    assert lives.live_on({"a": range(1, 101)}) == {}
    assert ([number for _, number, _ in lives.dead.rows], len(lives.out.rows)) == ([30], 99)


def test_a_record_that_holds_up_its_task_is_found_in_one_session(tmp_path):
    lives = Lives(tmp_path, {30})
    lives.hangs = True
    assert lives.live({"a": range(1, 101), "b": range(5000, 5010)}) == {}
    assert ([number for _, number, _ in lives.dead.rows], len(lives.out.rows)) == ([30], 109)
    assert lives.out.opened > 5, "it is open again after each job that was cancelled"


def test_a_pipeline_that_hangs_over_every_record_stops_and_buries_nobody(tmp_path):
    lives = Lives(tmp_path, set(range(1, 101)))
    lives.hangs = True
    assert "others that were tried" in (lives.live({"a": range(1, 101)}) or {})[A]
    assert (lives.dead.rows, lives.out.rows) == ([], [])


def test_two_of_them_in_two_shards_are_found(tmp_path):
    lives = Lives(tmp_path, {30, 5003})
    assert lives.live_on({"a": range(1, 101), "b": range(5000, 5010)}) == {}
    assert sorted(number for _, number, _ in lives.dead.rows) == [30, 5003]
    assert len(lives.out.rows) == 108


def test_the_other_shards_go_on_before_the_record_is_found(tmp_path):
    lives = Lives(tmp_path, {30})
    records = {"a": range(1, 101), "b": range(5000, 5010)}
    assert lives.live(records) is None and lives.live(records) is None
    assert lives.out.rows == []
    assert lives.live(records) is None and lives.live(records) is None
    assert numbers(lives.out, "b") == [*range(5000, 5010)]
    assert numbers(lives.out) == [*range(1, 30)], "the parts before it, too"


def test_ends_that_meet_other_records_each_time_isolate_nobody(tmp_path):
    lives = Lives(tmp_path, set())
    for end_at in (5, 15, 25, 35):
        assert lives.live({"a": range(1, end_at)}) == {}
        assert lives.live({"a": range(1, end_at + 1)}, end_at) is None
        assert Running(tmp_path / "running.json").suspects == {}
    assert lives.live({"a": range(1, 50)}) == {}
    assert (numbers(lives.out), lives.dead.rows) == ([*range(1, 50)], [])


def test_a_machine_on_which_every_session_ends_buries_nobody(tmp_path):
    lives = Lives(tmp_path, set(range(1, 101)))
    for _ in range(12):
        assert lives.live({"a": range(1, 101)}) is None
    assert lives.dead.rows == []


def test_without_a_dead_letter_the_shard_stops_in_front_of_the_record(tmp_path):
    lives = Lives(tmp_path, {30}, "mld.spark.onPoison = stop")
    reason = lives.live_on({"a": range(1, 101), "b": range(5000, 5010)})[A]
    assert "the record 30 of a fails: the session of Spark has ended" in reason
    assert (numbers(lives.out), numbers(lives.out, "b")) == ([*range(1, 30)], [*range(5000, 5010)])


def test_a_batch_is_cut_into_what_stands_before_the_suspects_these_in_parts_and_the_rest():
    rows = [(RecordPosition(n), None) for n in range(100)]
    parts = cut(rows, RunningSpan(RecordPosition(10), RecordPosition(89)))  # type: ignore[arg-type]
    assert parts == [(0, 10), *((at, at + 5) for at in range(10, 90, 5)), (90, 100)]
    assert len(parts) == PARTS + 2
    assert cut(rows, RunningSpan(RecordPosition(200), RecordPosition(300))) == [(0, 100)]  # type: ignore[arg-type]


SPAN = ["s", "a", "1", "9", 2, 0, False, False, 0]


def of_span(**more: object) -> str:
    """The text of a file with one suspected span, of which some values are others."""
    return json.dumps({"now": [], "suspects": [[more.get(str(at), one) for at, one in enumerate(SPAN)]]})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"now": 7}', '{"now": [["a"]], "suspects": []}', "[" * 100_000, '{"now": "', "\\ud800"),
        *(of_span(**{"4": None}), of_span(**{"4": "many"}), of_span(**{"4": [2]}), of_span(**{"8": {}})),
        *(of_span(**{"2": "-1"}), of_span(**{"3": "9" * 5000}), of_span(**{"4": float("inf")})),
    ],
)
def test_a_file_that_a_full_disk_has_cut_or_somebody_has_changed_is_as_none(tmp_path, text):
    (tmp_path / "running.json").write_text(text)
    running = Running(tmp_path / "running.json")
    assert running.suspects == {}
    running.forget({})
    assert Running(tmp_path / "running.json").suspects == {}


def test_the_file_of_those_tests_is_read_where_nothing_is_wrong_with_it(tmp_path):
    (tmp_path / "running.json").write_text(of_span())
    assert Running(tmp_path / "running.json").suspects == {A: RunningSpan(RecordPosition(1), RecordPosition(9), 2)}


@pytest.mark.parametrize("kind", ["pipe", "device", "huge"])
def test_what_is_no_such_file_is_waited_for_by_nobody_and_replaced(tmp_path, kind):
    file = tmp_path / "running.json"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "huge":
            file.touch()
            os.truncate(file, FILE_BYTES_MAX + 1)
    with Running(file).noted({A: RunningSpan(RecordPosition(1), RecordPosition(2))}):
        assert file.is_file() and not file.is_symlink()
        assert len(json.loads(file.read_text())["now"]) == 1


def test_a_note_of_every_record_isolates_them_only_until_they_have_run(tmp_path):
    lives = Lives(tmp_path, set())
    (tmp_path / "running.json").write_text(of_span(**{"2": "0", "3": "100"}))
    assert lives.live({"a": range(1, 101)}) == {}
    assert numbers(lives.out) == [*range(1, 101)]
    assert Running(tmp_path / "running.json").suspects == {}
