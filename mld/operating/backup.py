"""The backup file with the rows of a table. `mld export` writes one, and so does every act before it changes anything.
An *act* is a command with `--execute` that changes the table.

The file has lines of JSON: a header, then one row a line in DynamoDB JSON, with binary values in base64. Only the
file's owner may read it (0600). It never replaces another file. An act changes rows only after the file is on the disk.

`mld restore` keeps all rows in memory, so a file has at most `FILE_BYTES_MAX`. A reader checks the size, because a file
that somebody else made must not fill the memory. A writer checks it, because a larger file could not be restored.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from mld.operating.plan import ActRefusedError, Row
from mld.properties.named_file import NamedFileError, lines_of
from mld.properties.settings import Settings

FORMAT = "mld-rows"
VERSION = 1
LINE_BYTES_MAX = 8 * 1024 * 1024
"""A row of DynamoDB has at most 400 KB; escaped as JSON it may take a few times as much."""
FILE_BYTES_MAX = 256 * 1024 * 1024
"""A lease has some 2 KB, so this is a table of 100,000 of them."""
MODE = 0o600
SCALARS = {"S": str, "N": str, "SS": str, "NS": str, "BOOL": bool, "NULL": bool}
"""For each type of DynamoDB, the type in Python of a value, or of each member of a set. Binary values are base64."""


class BackupError(ActRefusedError):
    """A file cannot be written or read. The message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """First line of the file: which rows the file has, who wrote it, and when (`written_at`, ISO 8601 in UTC)."""

    application: str
    table: str
    stream: str
    written_at: str
    by: str
    """The command that wrote the file."""
    format: str = FORMAT
    version: int = VERSION


def backup_name(application: str, now_s: float) -> str:
    """Return the default name of the file that an act writes into the working directory."""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = "".join(character if character.isalnum() or character in "-_." else "_" for character in application)
    return f"mld-{plain}-{stamp}.jsonl"


def require_new(path: Path) -> None:
    """Raise BackupError if the file exists already."""
    if path.exists():
        raise BackupError(f"name another file: {path} exists already")


@contextmanager
def saved_file(path: Path) -> Iterator[IO[str]]:
    """Open a new text file. When the context ends, the file is synced to the disk; after an error it is removed.

    Raises BackupError.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise BackupError(f"name another file: {path} exists already") from None
    except OSError as error:
        raise BackupError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path)
    except OSError as error:
        forget(path)
        raise BackupError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
    except BaseException:
        forget(path)
        raise


def forget(path: Path) -> None:
    """Remove a file that was not completed, or is of no use."""
    path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    """Make the name of a new file durable: sync the directory that the file is in."""
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def free_name(path: Path) -> Path:
    """Return the path, or if it exists already, the path with a number added to its stem. The default name of a backup
    has the time in seconds, and two acts may run within one second.
    """
    number = 2
    found = path
    while found.exists():
        found = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return found


def save_rows(
    by: str, settings: Settings, rows: Iterable[Row], now_s: float, path: Path | str | None, table: str | None = None
) -> Path:
    """Save the rows of a table, by default the lease table, in a new file; return its path. Raises BackupError."""
    application = settings.application_name
    file = free_name(Path(backup_name(application, now_s))) if path is None else Path(path)
    written_at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    header = BackupHeader(application, table or settings.lease_table.name, settings.stream_name, written_at, by)
    write_backup(file, header, rows)
    return file


def write_backup(path: Path, header: BackupHeader, rows: Iterable[Row]) -> int:
    """Write the file, sync it to the disk, and return the number of rows. Raises BackupError.

    A file that cannot be completed, or would be too large to be read again, is removed.
    """
    count = 0
    with saved_file(path) as file:
        size = file.write(json.dumps(asdict(header)) + "\n")
        for row in rows:
            size += file.write(json.dumps({name: _mapped(value, _to_json) for name, value in row.items()}) + "\n")
            count += 1
            if size > FILE_BYTES_MAX:
                raise BackupError(
                    f"the rows take more than {FILE_BYTES_MAX >> 20} MiB, which `mld restore` does not read; "
                    "back the table up with DynamoDB itself"
                )
    return count


def read_backup(path: Path) -> tuple[BackupHeader, Iterator[Row]]:
    """Return the header, and an iterator over the rows. Both this call and the iterator raise BackupError."""
    lines = _lines(path)
    first = next(lines, None)
    try:
        value = json.loads(first or "")
        header = BackupHeader(**value)
        if not all(isinstance(one, str) for name, one in value.items() if name != "version"):
            raise TypeError
    except (ValueError, TypeError, RecursionError):
        raise BackupError(f"{path} is no file of `mld export`: its first line is no header") from None
    if header.format != FORMAT or header.version != VERSION:
        raise BackupError(f"{path}: format {header.format} {header.version} is not known to this version of mld")
    return header, _rows(path, lines)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a backup file. Raises BackupError if it cannot be read, or is of another kind."""
    try:
        for line in lines_of(path, LINE_BYTES_MAX, FILE_BYTES_MAX):
            yield line.decode("ascii")
    except UnicodeDecodeError:
        raise BackupError(f"{path} is no file of `mld export`: it is not text") from None
    except NamedFileError as error:
        raise BackupError(f"{path} {error}; name a file of `mld export`") from error


def _rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    """Yield the rows of a backup file. Raises BackupError at a line that is no row."""
    for number, line in enumerate(lines, start=2):
        try:
            value = json.loads(line)
            yield {name: _mapped(one, _from_json) for name, one in value.items()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise BackupError(f"{path}, line {number}: no row") from None


def _mapped(value: Mapping[str, Any], scalar: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return a copy of a typed DynamoDB value, with `scalar` applied to every value in it except maps and lists."""
    if len(value) != 1:
        raise ValueError("a value of DynamoDB has one type")
    ((kind, inner),) = value.items()
    match kind:
        case "M":
            return {kind: {name: _mapped(one, scalar) for name, one in inner.items()}}
        case "L":
            return {kind: [_mapped(one, scalar) for one in inner]}
    return {kind: scalar(kind, inner)}


def _to_json(kind: str, inner: Any) -> Any:
    """Return the value of an attribute as JSON has it: binary values in base64, sets as sorted lists."""
    match kind:
        case "B":
            return base64.b64encode(bytes(inner)).decode()
        case "BS":
            return [base64.b64encode(bytes(one)).decode() for one in inner]
    return sorted(inner) if kind in ("SS", "NS") else inner


def _from_json(kind: str, inner: Any) -> Any:
    """Return a scalar value as boto3's low-level client has it. Raises TypeError if it is not of its DynamoDB type."""
    match kind:
        case "B":
            return base64.b64decode(inner, validate=True)
        case "BS":
            return [base64.b64decode(one, validate=True) for one in inner]
    flat = inner if kind in ("SS", "NS") else [inner]
    if not isinstance(flat, list) or not all(isinstance(one, SCALARS[kind]) for one in flat):
        raise TypeError(f"no {kind} of DynamoDB")
    return inner
