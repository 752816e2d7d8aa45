"""The archive holds each record exactly once, whatever is repeated, torn, refused or run twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mld.processors import archive
from mld.processors.archive import Archive, ArchiveError, ShardFile, encode_line, file_name
from mld.processors.checkpoint_errors import InvalidStateError, ThrottlingError
from mld.processors.sdk import Checkpointer, Record, StreamLabel

SHARD = "shardId-000000000000"


def record(number: int, sub: int = 0, data: bytes = b"x") -> Record:
    return Record(data, "key", str(number), sub, 1000 + number)


def kept(directory: Path, shard: str = SHARD) -> list[tuple[int, int]]:
    """The places in the archive of one shard; fails on a line that is not whole."""
    data = (directory / file_name(shard)).read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [(int(line["sequence"]), line["sub"]) for line in map(json.loads, data.splitlines())]


class Daemon:
    """Answers checkpoints, and remembers what was in the file at that moment."""

    def __init__(self, directory: Path, *answers: str) -> None:
        self.directory = directory
        self.answers = list(answers)
        self.asked: list[tuple[str | None, int | None]] = []
        self.kept_when_asked: list[list[tuple[int, int]]] = []
        self.checkpointer = Checkpointer(self.ask, sleep=lambda _: None, rng=random.Random(1))

    def ask(self, sequence: str | None, sub: int | None) -> str | None:
        self.asked.append((sequence, sub))
        self.kept_when_asked.append(kept(self.directory))
        return self.answers.pop(0) if self.answers else None


def started(directory: Path, sequence: str = "TRIM_HORIZON", sub: int = 0) -> Archive:
    processor = Archive(directory)
    processor.initialize(SHARD, sequence, sub)
    return processor


def test_a_line_holds_everything_the_child_was_given(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    records = [Record("\u00e9\n\u2028".encode(), "k\u00e9y", "5", 1, 99), Record(b"\xff", "", "6", 0, 100)]
    started(tmp_path).process_records(records, daemon.checkpointer, 0)
    lines = (tmp_path / f"{SHARD}.jsonl").read_bytes().split(b"\n")
    text, binary, nothing = lines
    assert json.loads(text) == {
        "shard": SHARD,
        "sequence": "5",
        "sub": 1,
        "partition_key": "k\u00e9y",
        "arrival_ms": 99,
        "data": "\u00e9\n\u2028",
    }
    assert b64decode(json.loads(binary)["data_base64"]) == b"\xff"
    assert nothing == b""


def test_the_records_are_in_the_file_before_the_checkpoint_is_asked_for(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    started(tmp_path).process_records([record(1), record(2, 0), record(2, 1)], daemon.checkpointer, 0)
    assert daemon.asked == [("2", 1)]
    assert daemon.kept_when_asked == [[(1, 0), (2, 0), (2, 1)]]


def test_a_replay_of_known_records_only_is_checkpointed_too(tmp_path: Path) -> None:
    started(tmp_path).process_records([record(1)], Daemon(tmp_path).checkpointer, 0)
    daemon = Daemon(tmp_path)
    started(tmp_path).process_records([record(1)], daemon.checkpointer, 0)
    assert kept(tmp_path) == [(1, 0)]
    assert daemon.asked == [("1", 0)]


def test_a_torn_last_line_is_cut_and_written_again(tmp_path: Path) -> None:
    whole = encode_line(SHARD, record(1)) + encode_line(SHARD, record(2))
    for length in range(len(whole) + 1):
        (tmp_path / f"{SHARD}.jsonl").write_bytes(whole[:length])
        started(tmp_path).process_records([record(1), record(2), record(3)], Daemon(tmp_path).checkpointer, 0)
        assert kept(tmp_path) == [(1, 0), (2, 0), (3, 0)]


def test_pages_that_never_reached_the_disk_before_a_power_cut_are_written_again(tmp_path: Path) -> None:
    lines = [encode_line(SHARD, record(number)) for number in range(1, 5)]
    lines[2] = b"\0" * len(lines[2])
    (tmp_path / f"{SHARD}.jsonl").write_bytes(b"".join(lines))
    replay = [record(number) for number in range(3, 6)]
    started(tmp_path, "2").process_records(replay, Daemon(tmp_path).checkpointer, 0)
    assert kept(tmp_path) == [(number, 0) for number in range(1, 6)]
    (aside,) = tmp_path.glob("*.cut-*")
    assert aside.read_bytes() == lines[2] + lines[3]


def test_damage_before_the_checkpoint_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    damaged = encode_line(SHARD, record(1)) + b"damaged\n" + encode_line(SHARD, record(3))
    (tmp_path / f"{SHARD}.jsonl").write_bytes(damaged)
    with pytest.raises(ArchiveError, match="damaged at byte"):
        started(tmp_path, "3")
    assert (tmp_path / f"{SHARD}.jsonl").read_bytes() == damaged


def test_a_torn_end_is_cut_even_if_the_shard_went_on_elsewhere(tmp_path: Path) -> None:
    (tmp_path / f"{SHARD}.jsonl").write_bytes(encode_line(SHARD, record(1)) + b'{"shard":')
    started(tmp_path, "9").process_records([record(10)], Daemon(tmp_path).checkpointer, 0)
    assert kept(tmp_path) == [(1, 0), (10, 0)]


def test_a_long_file_is_read_from_the_checkpoint_on_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PROBE_BYTES", 256)
    lines = [encode_line(SHARD, record(number)) for number in range(1, 101)]
    lines[10] = b"x" * (len(lines[10]) - 1) + b"\n"  # would stop a reading from the beginning
    (tmp_path / f"{SHARD}.jsonl").write_bytes(b"".join(lines))
    file = ShardFile(tmp_path, SHARD, (90, 0))
    assert file.last == (100, 0)
    file.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_interleaving_of_owners_restarts_and_torn_writes_keeps_each_record_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("archive")
    stream = [record(number, sub) for number in range(1, 8) for sub in range(2)]
    checkpointed = 0
    owners: list[tuple[Archive, int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["start", "work", "work", "work", "tear"]))
        if step == "start":
            at = stream[checkpointed - 1] if checkpointed else None
            position = (at.sequence_number, at.sub_sequence_number) if at else ("TRIM_HORIZON", 0)
            owners.append((started(directory, *position), checkpointed))
        elif step == "work" and owners:
            index = data.draw(st.integers(0, len(owners) - 1))
            owner, position = owners[index]
            size = data.draw(st.integers(0, 5))
            owner.process_records(stream[position : position + size], Daemon(directory).checkpointer, 0)
            owners[index] = (owner, min(position + size, len(stream)))
            checkpointed = max(checkpointed, owners[index][1])
        elif step == "tear" and (directory / file_name(SHARD)).exists():
            with (directory / file_name(SHARD)).open("ab") as file:
                file.write(encode_line(SHARD, record(99))[: data.draw(st.integers(0, 30))])
    if owners:
        started(directory)  # cuts a torn end
        expected = stream[:checkpointed]
        assert kept(directory) == [(int(r.sequence_number), r.sub_sequence_number) for r in expected]


def test_a_full_disk_ends_in_an_error_without_checkpoint_and_leaves_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = Daemon(tmp_path)
    processor = started(tmp_path)
    processor.process_records([record(1)], daemon.checkpointer, 0)
    real_write = os.write

    def write_half_then_fail(fd: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write_half_then_fail)
    with pytest.raises(ArchiveError, match="No space left"):
        processor.process_records([record(2), record(3)], daemon.checkpointer, 0)
    monkeypatch.undo()
    assert daemon.asked == [("1", 0)]
    assert kept(tmp_path) == [(1, 0)]
    started(tmp_path, "1").process_records([record(2), record(3)], daemon.checkpointer, 0)
    assert kept(tmp_path) == [(1, 0), (2, 0), (3, 0)]


def test_a_failing_fsync_takes_the_batch_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path)
    processor = started(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match="nothing was checkpointed"):
        processor.process_records([record(1)], daemon.checkpointer, 0)
    assert daemon.asked == []
    assert kept(tmp_path) == []


def test_a_lock_that_is_never_free_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LOCK_WAIT_S", 0.0)
    daemon = Daemon(tmp_path)
    processor = started(tmp_path)
    with (tmp_path / f"{SHARD}.jsonl").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ArchiveError, match="locked by another process"):
            processor.process_records([record(1)], daemon.checkpointer, 0)
    assert daemon.asked == []
    assert kept(tmp_path) == []


@pytest.mark.parametrize("harm", ["remove", "replace", "shorten"])
def test_a_file_taken_away_while_running_ends_in_an_error_without_checkpoint(tmp_path: Path, harm: str) -> None:
    daemon = Daemon(tmp_path)
    processor = started(tmp_path)
    processor.process_records([record(1)], daemon.checkpointer, 0)
    path = tmp_path / f"{SHARD}.jsonl"
    match harm:
        case "remove":
            path.unlink()
        case "replace":
            path.rename(tmp_path / "moved")
            path.touch()
        case "shorten":
            path.write_bytes(b"")
    with pytest.raises(ArchiveError, match="moved, replaced or shortened"):
        processor.process_records([record(2)], daemon.checkpointer, 0)
    assert daemon.asked == [("1", 0)]


def test_a_record_older_than_the_archive_is_an_error_not_a_silent_skip(tmp_path: Path) -> None:
    started(tmp_path).process_records([record(100)], Daemon(tmp_path).checkpointer, 0)
    daemon = Daemon(tmp_path)
    with pytest.raises(ArchiveError, match="use an empty directory"):
        started(tmp_path).process_records([record(5)], daemon.checkpointer, 0)
    assert daemon.asked == []
    assert kept(tmp_path) == [(100, 0)]


def test_a_throttled_checkpoint_is_left_to_the_next_batch_but_not_at_the_end(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, *["ThrottlingException"] * 100)
    processor = started(tmp_path)
    processor.process_records([record(1)], daemon.checkpointer, 0)
    assert kept(tmp_path) == [(1, 0)]
    with pytest.raises(ThrottlingError):
        processor.shard_ended(daemon.checkpointer)


def test_a_lost_lease_is_no_error_and_other_refusals_are(tmp_path: Path) -> None:
    processor = started(tmp_path)
    processor.process_records([record(1)], Daemon(tmp_path, "ShutdownException").checkpointer, 0)
    processor.shard_ended(Daemon(tmp_path, "ShutdownException").checkpointer)
    with pytest.raises(InvalidStateError):
        processor.process_records([record(2)], Daemon(tmp_path, "InvalidStateException").checkpointer, 0)


def test_the_end_of_the_shard_is_checkpointed_without_a_position(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    started(tmp_path).shard_ended(daemon.checkpointer)
    assert daemon.asked == [(None, None)]


@pytest.mark.parametrize("shard_id", ["../../etc/passwd", "a/b", "..", ".", "x\0y", "\u00e9", "-rf", "%2e"])
def test_no_shard_id_leaves_the_directory(tmp_path: Path, shard_id: str) -> None:
    ShardFile(tmp_path / "inner", shard_id, None).close()
    assert [path.parent for path in tmp_path.rglob("*.jsonl")] == [tmp_path / "inner"]


def test_different_shard_ids_have_different_files() -> None:
    ids = ["a/b", "a%2Fb", "a%2fb", "a_b", "A/B", "a.b", ".."]
    assert len({file_name(shard_id) for shard_id in ids}) == len(ids)


@pytest.mark.parametrize("shard_id", ["", "s" * 300])
def test_a_shard_id_that_cannot_be_a_name_is_an_error(shard_id: str) -> None:
    with pytest.raises(ArchiveError, match="cannot be a file name"):
        file_name(shard_id)


def test_what_it_makes_is_for_its_user_alone_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o022)
    try:
        directory = tmp_path / "made"
        daemon = Daemon(directory)
        started(directory).process_records([record(1)], daemon.checkpointer, 0)
        (path,) = directory.iterdir()
        path.write_bytes(b"garbage\n" + path.read_bytes())
        started(directory)
    finally:
        os.umask(before)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert len(list(directory.iterdir())) == 2, "the file, and what was cut off it"
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}


def test_shards_of_the_same_id_in_several_streams_have_files_of_their_own(tmp_path: Path) -> None:
    """A sequence number below the last line of another stream's shard is no repetition."""
    base = tmp_path / "archive"
    for name, number in (("orders", 500), ("my_clicks", 3)):
        processor = Archive(base)
        processor.stream = StreamLabel(name, f"arn:aws:kinesis:eu-west-1:111:stream/{name}", f"111:{name}:17")
        processor.initialize(SHARD, "TRIM_HORIZON", 0)
        directory = base / f"111_{name}_17"
        processor.process_records([record(number)], Daemon(directory).checkpointer, 0)
        assert kept(directory) == [(number, 0)]
    assert sorted(one.name for one in base.iterdir()) == ["111_my_clicks_17", "111_orders_17"]
    assert {one.stat().st_mode & 0o777 for one in (base, *base.iterdir())} == {0o700}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["a", "b"]])
def test_what_is_no_directory_makes_none(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        archive.main(arguments)
    assert "usage: python -m mld.processors.archive DIRECTORY" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
