"""The file with the rows of a table: written by every act before it changes anything, and by `mld export`.

Lines of JSON: a header, then one row a line as DynamoDB writes rows, with binary values in base64. For its owner alone
(0600), never written over another file, and on the disk before it counts.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from mld.operating.plan import ActRefusedError, Row
from mld.properties.settings import Settings

FORMAT = "mld-rows"
VERSION = 1
MODE = 0o600
_BINARY, _BINARY_SET = "B", "BS"
SCALARS = {"S": str, "N": str, "SS": str, "NS": str, "BOOL": bool, "NULL": bool}


class BackupError(ActRefusedError):
    """A file cannot be written or read. The message names it and the reason."""


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """What the rows are. `written_at` is ISO 8601 in UTC."""

    application: str
    table: str
    stream: str
    written_at: str
    by: str
    """The command that wrote the file."""
    format: str = FORMAT
    version: int = VERSION


def backup_name(application: str, now_s: float) -> str:
    """Return the file that an act writes in the working directory unless it is given another."""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    plain = "".join(one if one.isalnum() or one in "-_." else "_" for one in application)
    return f"mld-{plain}-{stamp}.jsonl"


def require_new(path: Path) -> None:
    """Raise BackupError if something has that name already."""
    if path.exists():
        raise BackupError(f"{path} exists already; name another file")


@contextmanager
def saved_file(path: Path) -> Iterator[IO[str]]:
    """Open a new text file; it is on the disk when this ends well, and gone if it does not. Raises BackupError."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    except FileExistsError:
        raise BackupError(f"{path} exists already; name another file") from None
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
    """Remove a file that does not count."""
    path.unlink(missing_ok=True)


def _sync_directory(path: Path) -> None:
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def free_name(path: Path) -> Path:
    """Return the path, or one beside it that nothing has yet: two acts may be made within a second."""
    number = 2
    found = path
    while found.exists():
        found = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return found


def save_rows(
    by: str, settings: Settings, rows: Iterable[Row], now_s: float, path: Path | str | None, table: str | None = None
) -> Path:
    """Save the rows of a table, by default the lease table, in a new file; the file. Raises BackupError."""
    application = settings.application_name
    file = free_name(Path(backup_name(application, now_s))) if path is None else Path(path)
    written_at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    header = BackupHeader(application, table or settings.lease_table.name, settings.stream_name, written_at, by)
    write_backup(file, header, rows)
    return file


def write_backup(path: Path, header: BackupHeader, rows: Iterable[Row]) -> int:
    """Write the file and make sure that it is on the disk; returns the number of rows. Raises BackupError.

    A file that cannot be written to its end is removed.
    """
    count = 0
    with saved_file(path) as file:
        file.write(json.dumps(asdict(header)) + "\n")
        for row in rows:
            file.write(json.dumps({name: _to_json(value) for name, value in row.items()}) + "\n")
            count += 1
    return count


def read_backup(path: Path) -> tuple[BackupHeader, Iterator[Row]]:
    """Return the header, and the rows one by one. Raises BackupError, also while the rows are read."""
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
    try:
        with path.open(encoding="ascii") as file:
            yield from file
    except UnicodeDecodeError:
        raise BackupError(f"{path} is no file of `mld export`: it is not text") from None
    except OSError as error:
        raise BackupError(f"cannot read {path}: {error.strerror}") from error


def _rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=2):
        try:
            value = json.loads(line)
            yield {name: _from_json(one) for name, one in value.items()}
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise BackupError(f"{path}, line {number}: no row") from None


def _to_json(value: Mapping[str, Any]) -> dict[str, Any]:
    ((kind, inner),) = value.items()
    if kind == _BINARY:
        return {kind: base64.b64encode(bytes(inner)).decode()}
    if kind == _BINARY_SET:
        return {kind: [base64.b64encode(bytes(one)).decode() for one in inner]}
    if kind == "M":
        return {kind: {name: _to_json(one) for name, one in inner.items()}}
    if kind == "L":
        return {kind: [_to_json(one) for one in inner]}
    return {kind: sorted(inner) if kind in ("SS", "NS") else inner}


def _from_json(value: Mapping[str, Any]) -> dict[str, Any]:
    if len(value) != 1:
        raise ValueError("a value of DynamoDB has one type")
    ((kind, inner),) = value.items()
    if kind == _BINARY:
        return {kind: base64.b64decode(inner, validate=True)}
    if kind == _BINARY_SET:
        return {kind: [base64.b64decode(one, validate=True) for one in inner]}
    if kind == "M":
        return {kind: {name: _from_json(one) for name, one in inner.items()}}
    if kind == "L":
        return {kind: [_from_json(one) for one in inner]}
    flat = inner if kind in ("SS", "NS") else [inner]
    if not isinstance(flat, list) or not all(isinstance(one, SCALARS[kind]) for one in flat):
        raise TypeError(f"no {kind} of DynamoDB")
    return {kind: inner}
