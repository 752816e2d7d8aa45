"""The file with the rows of a table: what is written comes back, and nothing is overwritten."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.operating import backup
from mld.operating.backup import (
    BackupError,
    BackupHeader,
    backup_name,
    free_name,
    read_backup,
    saved_file,
    write_backup,
)
from mld.operating.plan import ActRefusedError

HEADER = BackupHeader("clicks", "clicks-leases", "click-stream", "2026-11-23T04:00:00+00:00", "mld export")
NAMES = st.text(min_size=1, max_size=8)
SCALARS = st.one_of(
    st.builds(lambda one: {"S": one}, st.text(st.characters(codec="utf-8"), max_size=8)),
    st.builds(lambda one: {"N": str(one)}, st.integers()),
    st.builds(lambda one: {"B": one}, st.binary(max_size=8)),
    st.builds(lambda one: {"BOOL": one}, st.booleans()),
    st.builds(lambda one: {"SS": sorted(one)}, st.sets(NAMES, min_size=1, max_size=3)),
    st.builds(lambda one: {"BS": sorted(one)}, st.sets(st.binary(max_size=4), min_size=1, max_size=3)),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda one: {"M": one}, st.dictionaries(NAMES, inner, max_size=3)),
        st.builds(lambda one: {"L": one}, st.lists(inner, max_size=3)),
    ),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4), max_size=4)


@pytest.mark.parametrize("kind", ["device", "pipe", "one endless line"])
def test_what_is_no_file_of_rows_is_refused_without_reading_it_all(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows.jsonl"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    with pytest.raises(BackupError, match=r"no regular file|has a line of more than"):
        read_backup(path)


@given(rows=ROWS)
def test_what_is_written_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "saved.jsonl"
    assert write_backup(path, HEADER, rows) == len(rows)
    header, read = read_backup(path)
    assert (header, list(read)) == (HEADER, rows)


def test_no_file_is_written_that_cannot_be_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "saved.jsonl"
    monkeypatch.setattr(backup, "FILE_BYTES_MAX", 1 << 20)
    row = {"leaseKey": {"S": "k" * 1000}}
    written = write_backup(path, HEADER, [row] * 1000)
    assert sum(1 for _ in read_backup(path)[1]) == written
    path.unlink()
    with pytest.raises(BackupError, match="more than 1 MiB, which `mld restore` does not read"):
        write_backup(path, HEADER, [row] * 2000)
    assert not path.exists()


@contextmanager
def small_disk() -> Iterator[None]:
    """No file may be longer than 100 bytes; no fixture, because pytest may write its own output into a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    why = r"cannot write .*out: File too large; nothing was changed"
    with small_disk(), pytest.raises(ActRefusedError, match=why), saved_file(path) as file:
        file.write("x" * 10_000)
    assert not path.exists()


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("kept")
    with pytest.raises(ActRefusedError, match="exists already"), saved_file(path) as file:
        file.write("new")
    assert path.read_text() == "kept"


def test_whatever_goes_wrong_the_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(RuntimeError), saved_file(path):
        raise RuntimeError
    assert not path.exists()


def test_it_is_for_its_owner_only(tmp_path: Path) -> None:
    with saved_file(tmp_path / "out") as file:
        file.write("x")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_two_files_of_one_second_have_two_names(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert free_name(path) == path
    path.write_text("")
    assert free_name(path) == tmp_path / "a-2.jsonl"
    (tmp_path / "a-2.jsonl").write_text("")
    assert free_name(path) == tmp_path / "a-3.jsonl"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "its first line is no header"),
        ("[]\n", "its first line is no header"),
        ("[" * 100_000, "its first line is no header"),
        ('{"format": "other"}\n', "its first line is no header"),
        (json.dumps({**asdict(HEADER), "table": 5}) + "\n", "its first line is no header"),
        (json.dumps({**asdict(HEADER), "stream": []}) + "\n", "its first line is no header"),
        (json.dumps({**asdict(HEADER), "format": None}) + "\n", "its first line is no header"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(BackupError, match=says):
        read_backup(path)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "7",
        '{"a":' * 50_000,
        '{"leaseKey": {}}',
        '{"leaseKey": {"B": "no base64"}}',
        '{"leaseKey": {"S": 5}}',
        '{"leaseKey": {"S": null}}',
        '{"leaseCounter": {"N": 5}}',
        '{"leaseCounter": {"N": {"N": "5"}}}',
        '{"parentShardId": {"SS": "abc"}}',
        '{"parentShardId": {"SS": [["a"]]}}',
        '{"childShardIds": {"SS": {"a": 1}}}',
        '{"mldPaused": {"BOOL": "true"}}',
        '{"mldFailing": {"M": [1]}}',
        '{"mldFailing": {"L": {"a": 1}}}',
        '{"pendingCheckpointState": {"B": 5}}',
        '{"x": {"BS": "abc"}}',
        '{"x": {"XX": "abc"}}',
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "saved.jsonl"
    write_backup(path, HEADER, [{"leaseKey": {"S": "a"}}])
    with path.open("a") as file:
        file.write(line + "\n")
    _, rows = read_backup(path)
    with pytest.raises(BackupError, match="line 3: no row"):
        list(rows)


def test_a_version_to_come_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    write_backup(path, HEADER, [])
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(BackupError, match="not known to this version"):
        read_backup(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match=r"none\.jsonl cannot be read: No such file"):
        read_backup(tmp_path / "none.jsonl")


def test_the_name_holds_application_and_time() -> None:
    assert backup_name("my/app", 1_763_000_000.4) == "mld-my_app-20251113T021320Z.jsonl"
