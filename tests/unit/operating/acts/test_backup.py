"""The file with the rows of a table: what is written comes back, and nothing is overwritten."""

from __future__ import annotations

import json
import resource
import stat
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.operating.backup import BackupError, BackupHeader, backup_name, read_backup, write_backup

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


@given(rows=ROWS)
def test_what_is_written_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "saved.jsonl"
    assert write_backup(path, HEADER, rows) == len(rows)
    header, read = read_backup(path)
    assert (header, list(read)) == (HEADER, rows)


def test_the_file_is_for_its_owner_alone_and_replaces_no_other(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    write_backup(path, HEADER, [{"leaseKey": {"S": "a"}}])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(BackupError, match=r"saved\.jsonl exists already"):
        write_backup(path, HEADER, [])
    assert len(path.read_text().splitlines()) == 2


def test_a_file_that_cannot_be_written_to_its_end_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "saved.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(BackupError, match=r"saved\.jsonl: .*; nothing was changed"):
            write_backup(path, HEADER, [{"leaseKey": {"S": "x" * 100_000}}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not path.exists()


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
    with pytest.raises(BackupError, match=r"cannot read .*none\.jsonl: No such file"):
        read_backup(tmp_path / "none.jsonl")


def test_the_name_holds_application_and_time() -> None:
    assert backup_name("my/app", 1_763_000_000.4) == "mld-my_app-20251113T021320Z.jsonl"
