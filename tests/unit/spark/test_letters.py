"""Dead letters that are replayed: what they are as records, and that each reaches the sinks that miss it once."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.processors.spark.batch.record_columns import SparkRecord
from mld.processors.spark.commit.s3_store import S3Store
from mld.processors.spark.commit.store import PosixStore
from mld.processors.spark.letters import LetterError, for_us, letters_of, replay_shard
from mld.processors.spark.positions import RecordPosition
from mld.processors.spark.replay import LetterReplay, settings_of
from mld.processors.spark.settings import SettingsError
from mld.processors.spark.sink_port import DataRefused, SinkError
from mld.processors.spark.sinks.stored_letters import StoredLetters
from mld.processors.spark.writer_identity import WriterIdentity
from tests.twins.bucket import BucketInMemory, MemoryObjects
from tests.unit.spark.test_engine import two_sinks
from tests.unit.spark.twins import Bed, MemorySink
from tests.unit.spark.twins import settings_of as settings_in_memory

WRITER = WriterIdentity("app", "pipeline", "s", "arn", "then")


def letter(n: int, data: bytes | None = None, **more: Any) -> bytes:
    value = {
        "streamName": "s",
        "shardId": "a",
        "sequenceNumber": str(n),
        "subSequenceNumber": 0,
        "partitionKey": "k",
        "approximateArrivalTimestamp": "2026-01-02T03:04:05.678Z",
        "data": base64.b64encode(b"%d" % n if data is None else data).decode(),
        "reason": "division by zero",
        **more,
    }
    return json.dumps({key: one for key, one in value.items() if one is not None}).encode() + b"\n"


def test_a_letter_becomes_the_record_that_it_was():
    (one,) = letters_of(7, [("c", letter(5, b"x", subSequenceNumber=3))])
    record = SparkRecord(b"x", b"k", b"5", 1767323045678, 3, b"s", b"a")
    assert (one.record, one.position) == (record, RecordPosition(7, 0))
    assert one.record.position == RecordPosition(5, 3)


def test_what_spark_leaves_out_because_it_is_null_comes_as_the_daemon_says_it():
    (one,) = letters_of(1, [("c", letter(5, approximateArrivalTimestamp=None, data=b"", partitionKey=None))])
    assert one.record[:4] == (b"", None, b"5", None)


def test_letters_are_numbered_through_the_files_of_a_commit():
    found = letters_of(3, [("a", letter(1) + letter(2)), ("b", letter(9))])
    assert [one.position for one in found] == [RecordPosition(3, 0), RecordPosition(3, 1), RecordPosition(3, 2)]


HOSTILE = [
    b"[" * 100_000 + b"\n",
    letter(1, partitionKey={"a": 1, "sequenceNumber": "99"}),
    letter(1, sequenceNumber=5),
    letter(1, sequenceNumber="9" * 5000),
    letter(1, sequenceNumber="٣"),
    letter(1, subSequenceNumber="1"),
    letter(1, subSequenceNumber=-1),
    letter(1, subSequenceNumber=2**64),
    letter(1, shardId=["a"]),
    letter(1, streamName=7),
    letter(1, data=None) + letter(1, approximateArrivalTimestamp="9" * 5000),
    letter(1, approximateArrivalTimestamp="2026-01-02T03:04:05"),
]


@pytest.mark.parametrize(
    "data",
    [b"nonsense\n", b"[]\n", b'{"a":1}\n', letter(1, approximateArrivalTimestamp="then"), *HOSTILE],
)
def test_a_line_that_is_no_letter_is_named(data):
    with pytest.raises(LetterError, match=r"c0001-0\.json has a line that is no dead letter"):
        list(letters_of(1, [("c0001-0.json", data)]))


def test_letters_of_others_are_left_out_and_runs_are_of_the_same_sinks():
    texts = b"".join(
        (
            letter(1),
            letter(2, application="app", pipelineId="pipeline"),
            letter(3, application="other", pipelineId="pipeline"),
            letter(4, sinks=["gone"]),
            letter(5, sinks=["out", "gone"]),
            letter(6, sinks=["out"]),
            letter(7),
        )
    )
    runs = for_us(letters_of(1, [("c", texts)]), ("app", "pipeline"), frozenset({"out", "slow"}))
    assert [(only, [one.record.position.sequence for one in run]) for only, run in runs] == [
        (None, [1, 2]),
        (frozenset({"out"}), [5, 6]),
        (None, [7]),
    ]


@dataclass
class MemoryLetters:
    texts: dict[int, bytes] = field(default_factory=dict)

    def commits(self) -> dict[int, list[str]]:
        return {number: [str(number)] for number in self.texts}

    def read(self, name: str) -> bytes:
        return self.texts[int(name)]

    def identity(self) -> str:
        return "box"


def replay_of(bed: Bed, box: MemoryLetters) -> LetterReplay:
    return LetterReplay(bed.engine, box, max(box.texts, default=0), WRITER, frozenset(bed.sinks))


def bed_with_letter(directory: Path, *keys: str) -> tuple[Bed, MemorySink]:
    dead = MemorySink("deadLetter")
    given_keys = ("mld.spark.deadLetter = /dead", *keys)
    return Bed(directory, settings_in_memory(*given_keys), dead=dead), dead


def numbers(sink: MemorySink) -> list[int]:
    return [n for _, n, _ in sink.rows]


def test_letters_go_into_the_sink_once_however_often_they_are_replayed(tmp_path):
    bed, _ = bed_with_letter(tmp_path)
    box = MemoryLetters({2: letter(5) + letter(3), 4: letter(5, shardId="b")})
    first = replay_of(bed, box)
    assert (first.run(), first.letters, first.earlier) == (None, 3, 0)
    again = replay_of(bed, box)
    assert (again.run(), again.letters, again.earlier) == (None, 0, 3)
    box.texts[6] = letter(8)
    assert replay_of(bed, box).run() is None
    assert [(shard, n) for shard, n, _ in bed.sinks["out"].rows] == [("a", 5), ("a", 3), ("b", 5), ("a", 8)]
    bed.spool.close()


def test_a_commit_that_is_newer_than_the_replay_is_left_for_the_next_one(tmp_path):
    bed, _ = bed_with_letter(tmp_path)
    box = MemoryLetters({1: letter(1), 2: letter(2)})
    assert LetterReplay(bed.engine, box, 1, WRITER, frozenset(bed.sinks)).run() is None
    assert numbers(bed.sinks["out"]) == [1]


def test_what_fails_again_is_a_letter_again(tmp_path):
    bed, dead = bed_with_letter(tmp_path)
    bed.poison(lambda data: data == b"3")
    one = replay_of(bed, MemoryLetters({1: letter(5) + letter(3) + letter(7)}))
    assert (one.run(), one.again) == (None, 1)
    assert (numbers(bed.sinks["out"]), numbers(dead)) == ([5, 7], [3])


def test_what_is_malformed_still_is_a_letter_again(tmp_path):
    """Their positions are not those by which Spark says which ones they are."""
    bed, dead = bed_with_letter(tmp_path, "mld.spark.format = json", "mld.spark.schema = a INT")
    box = MemoryLetters({1: b"".join(letter(n, b"{bad" if n == 40 else b"{}") for n in range(1, 100))})
    one = replay_of(bed, box)
    assert (one.run(), one.again) == (None, 1)
    assert (len(bed.sinks["out"].rows), numbers(dead)) == (98, [40])


def test_only_the_sinks_that_miss_a_record_get_it(tmp_path):
    bed = two_sinks(tmp_path, dead=MemorySink("deadLetter"))
    assert replay_of(bed, MemoryLetters({1: letter(1, sinks=["slow"]) + letter(2)})).run() is None
    assert (numbers(bed.sinks["out"]), numbers(bed.sinks["slow"])) == ([2], [1, 2])


@settings(max_examples=60)
@given(st.data())
def test_replays_that_break_off_leave_each_sink_with_every_letter_once(tmp_path_factory, data):
    bed = two_sinks(tmp_path_factory.mktemp("bed"), dead=MemorySink("deadLetter"))
    sinks = st.sampled_from([None, None, ["out"], ["slow"]])
    box, n = MemoryLetters(), 0
    missed: dict[str, list[int]] = {name: [] for name in bed.sinks}
    for commit in range(1, data.draw(st.integers(2, 5))):
        texts = []
        for _ in range(data.draw(st.integers(1, 4))):
            n += 1
            only = data.draw(sinks)
            texts.append(letter(n, sinks=only))
            for name in only or bed.sinks:
                missed[name].append(n)
        box.texts[commit] = b"".join(texts)
        for sink in bed.sinks.values():
            kinds = st.sampled_from([None, None, SinkError("not now")])
            sink.faults, sink.faults_after = (
                data.draw(st.lists(kinds, max_size=3)),
                data.draw(st.lists(kinds, max_size=3)),
            )
        if data.draw(st.booleans()):
            bed.use(bed.spool)
            bed.engine.start()
        assert replay_of(bed, box).run() is None
    for name, sink in bed.sinks.items():
        assert sorted(numbers(sink)) == missed[name]
    bed.spool.close()


def test_a_sink_that_refuses_stops_the_replay_where_it_is(tmp_path):
    bed, _ = bed_with_letter(tmp_path, "mld.spark.onPoison = stop")
    bed.sinks["out"].refusal, bed.sinks["out"].poison = DataRefused, lambda data: data == b"2"
    box = MemoryLetters({1: letter(1), 2: letter(2), 3: letter(3)})
    assert "fails: division by zero" in str(replay_of(bed, box).run())
    bed.sinks["out"].poison = lambda data: False
    assert replay_of(bed, box).run() is None
    assert numbers(bed.sinks["out"]) == [1, 2, 3]


# --- where letters are ------------------------------------------------------------------------------------------------


def test_files_are_found_by_their_commits(tmp_path):
    for name in (
        "c000000000012-00000.json",
        "c000000000003-00001.json",
        "c000000000003-00000.json",
        "other.json",
        "_x",
    ):
        (tmp_path / name).write_text(name)
    box = StoredLetters(PosixStore(tmp_path))
    assert box.commits() == {
        3: ["c000000000003-00000.json", "c000000000003-00001.json"],
        12: ["c000000000012-00000.json"],
    }
    assert box.read("c000000000012-00000.json") == b"c000000000012-00000.json"
    with pytest.raises(SinkError, match="reading c5"):
        box.read("c5-0.json")


def test_a_directory_keeps_its_identity_until_it_is_made_anew(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for one in (first, second):
        one.mkdir()
    names = {StoredLetters(PosixStore(one)).identity() for one in (first, first, second)}
    assert len(names) == 2 and all(map(replay_shard, names))
    (first / "_mld_replay").unlink()
    assert StoredLetters(PosixStore(first)).identity() not in names
    assert [one.name for one in first.iterdir()] == ["_mld_replay"]


# --- what cannot be replayed ------------------------------------------------------------------------------------------

PLAIN = "mld.spark.pipeline = p.py:f\nmld.spark.streamId = s-1\nstreamName = s\napplicationName = app\n"
DEAD = "mld.spark.deadLetter = dead\n"
OUT = "mld.spark.sink.out.path = out\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PLAIN + OUT, "mld.spark.deadLetter is not set"),
        (PLAIN + DEAD, "writes by itself"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(tmp_path, text, words):
    file = tmp_path / "app.properties"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        settings_of(str(file), {})


def test_the_settings_of_a_replay_have_the_identity_of_the_daemon_s_marks(tmp_path):
    file = tmp_path / "app.properties"
    file.write_text(PLAIN + DEAD + OUT)
    assert settings_of(str(file), {}).writer == WriterIdentity("app", "main", "s", "s-1")


@pytest.mark.parametrize("content", [b"", b"\xff", b"a" * 5_000])
def test_an_identity_that_somebody_has_changed_is_another_one(tmp_path, content):
    """As after the file was removed: the letters are replayed again."""
    (tmp_path / "_mld_replay").write_bytes(content)
    found = StoredLetters(PosixStore(tmp_path)).identity()
    assert found == StoredLetters(PosixStore(tmp_path)).identity() and len(found) <= 64


def test_letters_in_a_bucket_are_found_by_their_commits_and_have_an_identity():
    bucket = BucketInMemory()
    objects = MemoryObjects(bucket)
    for key in ("dead/c000000000002-part-1.json", "dead/c000000000002-part-0.json", "dead/_mld/head.json", "c1-x.json"):
        objects.put(key, key.encode())
    box = StoredLetters(S3Store(objects, "dead/"))
    assert box.commits() == {2: ["c000000000002-part-0.json", "c000000000002-part-1.json"]}
    assert box.read("c000000000002-part-0.json") == b"dead/c000000000002-part-0.json"
    assert box.identity() == StoredLetters(S3Store(MemoryObjects(bucket), "dead/")).identity()
    with pytest.raises(SinkError, match="No such file"):
        box.read("c0000000009-part-0.json")
