"""The directory with definitions of schemas: nobody can make it first, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mld.schemas import definition_files
from mld.schemas.definition_files import DefinitionFiles

OLD_NAME = f"mld-schemas-{os.getuid()}"


def test_a_directory_that_somebody_made_first_takes_no_definition_away(tmp_path: Path) -> None:
    (tmp_path / OLD_NAME).mkdir(0o755)
    files = DefinitionFiles(tmp_path)
    path = Path(files.write("v", "{}") or "")
    assert path.read_text() == "{}"
    assert path.parent.parent == tmp_path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    files.close()


def test_each_daemon_has_a_directory_of_its_own_and_removes_it(tmp_path: Path) -> None:
    one, other = DefinitionFiles(tmp_path), DefinitionFiles(tmp_path)
    first, second = Path(one.write("v", "{}") or ""), Path(other.write("v", "{}") or "")
    assert first.parent != second.parent
    one.close()
    assert not first.parent.exists()
    assert second.read_text() == "{}"
    other.sweep()
    assert second.exists(), "what a living daemon holds stays"
    other.close()
    assert list(tmp_path.iterdir()) == []
    assert other.write("v", "{}") is None


def test_no_directory_is_made_without_a_definition(tmp_path: Path) -> None:
    files = DefinitionFiles(tmp_path)
    files.sweep()
    files.close()
    assert list(tmp_path.iterdir()) == []


def test_the_next_start_removes_what_a_killed_daemon_left(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from mld.schemas.definition_files import DefinitionFiles\n"
        "print(DefinitionFiles(Path(sys.argv[1])).write('v', '{}'), flush=True); sys.stdin.read()"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    left = Path(daemon.stdout.readline().strip())
    next_one = DefinitionFiles(tmp_path)
    next_one.sweep()
    assert left.exists()
    daemon.send_signal(signal.SIGKILL)
    daemon.communicate()
    next_one.sweep()
    assert list(tmp_path.iterdir()) == []


def test_only_private_directories_of_this_user_are_removed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    (tmp_path / f"{OLD_NAME}-link").symlink_to(kept)
    (tmp_path / f"{OLD_NAME}-open").mkdir(0o755)
    (tmp_path / f"{OLD_NAME}-file").touch()
    before = sorted(tmp_path.rglob("*"))
    DefinitionFiles(tmp_path).sweep()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    files = DefinitionFiles(tmp_path)
    first = Path(files.write("v", "{}") or "")
    first.unlink()
    first.parent.rmdir()
    again = files.write("v", "{}")
    assert again is not None
    assert Path(again).read_text() == "{}"
    files.close()


def test_only_so_many_definitions_are_written_and_each_may_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(definition_files, "FILES_MAX", 3)
    files = DefinitionFiles(tmp_path)
    written = [files.write(str(number), "{}") for number in range(10)]
    assert [one is not None for one in written] == [True] * 3 + [False] * 7
    assert files.write("1", "[]") == written[1]
    assert caplog.text.count("no more definitions") == 1
    files.close()


def test_a_place_that_takes_no_directory_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert DefinitionFiles(tmp_path / "missing").write("v", "{}") is None
    assert "is not written" in caplog.text


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = DefinitionFiles(tmp_path)
    folder = Path(files.write("v", "{}") or "").parent
    (folder / "w").mkdir()
    assert files.write("w", "{}") is None
    assert "schema version w is not written" in caplog.text
    assert sorted(one.name for one in folder.iterdir()) == ["v", "w"]
    files.close()


def test_a_definition_with_half_a_surrogate_pair_is_written_as_the_decoder_gets_it(tmp_path: Path) -> None:
    files = DefinitionFiles(tmp_path)
    assert Path(files.write("v", '{"doc": "\ud800"}') or "").read_text() == '{"doc": "?"}'
    files.close()
