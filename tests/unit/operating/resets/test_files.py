"""Files that count only when all of them is on the disk."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mld.core.positions import SUB_MAX, Position
from mld.operating.backup import free_name, saved_file
from mld.operating.plan import ActRefusedError
from mld.operating.skipping import SkipRange, parse_past


@pytest.fixture
def small_disk() -> Iterator[None]:
    """No file may be longer than 100 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    why = r"cannot write .*out: File too large; nothing was changed"
    with pytest.raises(ActRefusedError, match=why), saved_file(path) as file:
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


def test_a_number_with_a_slash_names_a_user_record():
    assert parse_past("12/3") == SkipRange(past=Position("12", 3), names_user_record=True)
    assert parse_past("12/0") == SkipRange(past=Position("12", 0), names_user_record=True)
    assert parse_past("12") == SkipRange(past=Position("12", SUB_MAX))


@pytest.mark.parametrize("text", ["", "x", "1/", "-1", "1/99999999999999999999", "1" * 130, "LATEST"])
def test_what_is_no_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(ActRefusedError, match="is no sequence number"):
        parse_past(text)
