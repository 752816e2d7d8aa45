"""Files that somebody else may have named, or prepared: nothing waits for ever, and nothing fills the memory."""

from __future__ import annotations

import ast
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mld.check.protocol_generation import guess
from mld.logging.logback import LogbackError, levels_of
from mld.operating.backup import BackupError, read_backup
from mld.processors.spark import pipeline
from mld.processors.spark.pipeline import PipelineError
from mld.properties import named_file
from mld.properties.loader import load
from mld.properties.named_file import NamedFileError, beginning_of, bytes_of, lines_of
from mld.properties.references import SubstitutionError
from mld.properties.remarks import ConfigurationError

ROOT = Path(__file__).parents[3]
SIZE = 1000


@pytest.fixture
def kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_file, "PIPE_WAIT_S", 0.05)


def odd_files(tmp_path: Path) -> Iterator[tuple[str, str]]:
    os.mkfifo(tmp_path / "pipe")
    yield str(tmp_path / "pipe"), "is no regular file"
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    yield str(tmp_path / "link"), "is no regular file"
    yield "/dev/zero", "is no regular file"
    yield "/dev/tty", "is no regular file|cannot be read"
    yield str(tmp_path), "cannot be read: Is a directory"
    yield str(tmp_path / "none"), "cannot be read: No such file"
    yield "a\0b", "is no file name"
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    yield str(tmp_path / "sparse"), "is larger than|has a line of more than"


def test_what_is_no_file_of_a_bounded_size_is_refused(tmp_path: Path) -> None:
    for path, why in odd_files(tmp_path):
        with pytest.raises(NamedFileError, match=why):
            bytes_of(path, SIZE)
        with pytest.raises(NamedFileError, match=why):
            list(lines_of(path, SIZE, 10 * SIZE))


def test_the_null_device_is_an_empty_file() -> None:
    assert bytes_of(os.devnull, SIZE) == b""
    assert list(lines_of(os.devnull, SIZE, SIZE)) == []


def test_content_lines_and_beginning(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\n\nthree")
    assert bytes_of(path, 14) == b"one\ntwo\n\nthree"
    assert list(lines_of(path, 5, 14)) == [b"one\n", b"two\n", b"\n", b"three"]
    assert beginning_of(path, 3) == b"one"
    with pytest.raises(NamedFileError, match="larger than 13"):
        bytes_of(path, 13)
    with pytest.raises(NamedFileError, match="a line of more than 4"):
        list(lines_of(path, 4, 14))
    with pytest.raises(NamedFileError, match="larger than 13"):
        list(lines_of(path, 5, 13))


def test_a_pipe_is_read_if_it_may_be_one_and_its_writer_is_not_waited_for_for_ever(
    tmp_path: Path, kept_waiting: None
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(NamedFileError, match="is a pipe into which nothing was written for"):
        bytes_of(path, SIZE, takes_pipe=True)
    reader, writer = os.pipe()
    threading.Thread(target=lambda: (os.write(writer, b"a" * SIZE), os.close(writer))).start()
    assert bytes_of(f"/dev/fd/{reader}", SIZE, takes_pipe=True) == b"a" * SIZE
    os.close(reader)


def test_an_endless_pipe_is_read_as_far_as_its_bound(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"a" * 2 * SIZE)
    with pytest.raises(NamedFileError, match="larger than 1000"):
        bytes_of(f"/dev/fd/{reader}", SIZE, takes_pipe=True)
    os.close(reader)
    os.close(writer)


def test_a_pipe_into_which_a_byte_is_written_now_and_then_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_file, "monotonic", itertools.count(0, 9).__next__)
    monkeypatch.setattr(named_file, "PIECE_BYTES", 1)
    reader, writer = os.pipe()
    os.write(writer, b"a" * 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_file, "PIPE_WAIT_S", 0.05)
        with pytest.raises(NamedFileError, match="nothing was written"):
            bytes_of(f"/dev/fd/{reader}", SIZE, takes_pipe=True)
    os.write(writer, b"a" * 50)
    with pytest.raises(NamedFileError, match="was not read to its end within 60 s"):
        bytes_of(f"/dev/fd/{reader}", SIZE, takes_pipe=True)
    os.close(reader)
    os.close(writer)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path, _ in odd_files(tmp_path):
        with pytest.raises(NamedFileError):
            bytes_of(path, SIZE)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- everything that reads a named file -------------------------------------------------------------------------------

MINIMUM = "executableName=c\napplicationName=a\nstreamName=s\nAwsCredentialsProvider=DefaultCredentialsProvider\n"


def _properties(path: str) -> None:
    load(path)


def _key(name: str, tmp_path: Path) -> Callable[[str], None]:
    def run(path: str) -> None:
        file = tmp_path / "app.properties"
        file.write_text(f"{MINIMUM}{name}\n".replace("PATH", path.replace("\0", "\\u0000")))
        load(file)

    return run


def _pipeline(ending: str, function: str, tmp_path: Path) -> Callable[[str], None]:
    def run(path: str) -> None:
        link = tmp_path / f"pipeline.{ending}"
        link.unlink(missing_ok=True)
        link.symlink_to(path.replace("\0", "\\0"))
        pipeline.load(f"{link}{function}", ("out",))

    return run


def readers(tmp_path: Path) -> dict[str, Callable[[str], object]]:
    return {
        "the properties file": _properties,
        "mld.streamsFile": _key("regionName=us-east-1\nmld.streamsFile=PATH", tmp_path),
        "${file:…}": _key("mld.notify=https://h/${file:PATH}", tmp_path),
        "-l": lambda path: levels_of(path, {}),
        "-l again": lambda path: levels_of(path, {}, again=True),
        "mld restore": lambda path: read_backup(Path(path)),
        "mld.spark.pipeline, SQL": _pipeline("sql", "", tmp_path),
        "mld.spark.pipeline, Python": _pipeline("py", ":transform", tmp_path),
    }


READERS = sorted(readers(Path()))


@pytest.mark.parametrize("reader", READERS)
def test_everything_that_reads_a_named_file_refuses_odd_ones_in_a_sentence(
    reader: str, tmp_path: Path, kept_waiting: None
) -> None:
    read = readers(tmp_path)[reader]
    refused = (ConfigurationError, SubstitutionError, LogbackError, BackupError, PipelineError)
    for path, _ in odd_files(tmp_path):
        with pytest.raises(refused):
            read(path)


def test_a_guess_at_the_protocol_waits_for_no_pipe(tmp_path: Path) -> None:
    for path, _ in odd_files(tmp_path):
        if path.startswith("/"):
            assert guess(["/bin/cat", path], {}) is None


# --- nobody else ------------------------------------------------------------------------------------------------------

ROOMS = ("properties", "mld/operating", "mld/check", "mld/logging")
"""The rooms that read what people name. All others read files of their own, of the system, or of the package."""
OTHERS = {
    "mld/operating/backup.py os.open",  # for writing, and a directory to sync
    "mld/operating/command_ends.py os.open",  # /dev/null
    "mld/operating/filling.py read_text",  # of the package
    "mld/check/message_schemas.py read_text",  # of the package
    "properties/named_file.py os.open",
}


def test_no_other_code_reads_a_file_that_is_named() -> None:
    found = set()
    for room in ROOMS:
        for file in sorted((ROOT / room).glob("**/*.py")):
            for call in (one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.Call)):
                name = ast.unparse(call.func)
                if name in ("open", "os.open", "io.open", "gzip.open") or name.endswith((".read_text", ".read_bytes")):
                    found.add(f"{file.relative_to(ROOT)} {name if '.read_' not in name else name.rpartition('.')[2]}")
    assert found == OTHERS
