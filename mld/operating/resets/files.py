"""Files in which these acts save rows and records: new, for their owner alone, on the disk before they count."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from mld.operating.acts.backup import BackupHeader, backup_name, write_backup
from mld.operating.acts.plan import ActRefusedError, Row
from mld.operating.resets.application import Application, Doors

FILE_MODE = 0o600


def require_new(path: Path) -> None:
    """Raises ActRefusedError if something has that name already."""
    if path.exists():
        raise ActRefusedError(f"{path} exists already; name another file")


@contextmanager
def saved_file(path: Path) -> Iterator[IO[str]]:
    """A new text file; on the disk when this ends well, and gone if it does not. Raises ActRefusedError."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        raise ActRefusedError(f"{path} exists already; name another file") from None
    except OSError as error:
        raise ActRefusedError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
    try:
        with os.fdopen(number, "w", encoding="ascii") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path)
    except OSError as error:
        forget(path)
        raise ActRefusedError(f"cannot write {path}: {error.strerror}; nothing was changed") from error
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
    """The path, or one beside it that nothing has yet: two acts may be made within a second."""
    number = 2
    found = path
    while found.exists():
        found = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return found


def save_rows(command: str, app: Application, rows: Sequence[Row], path: Path | None, table: str | None = None) -> Path:
    """Save the rows of the lease table, or of another `table`, in a new file; which one. Raises BackupError."""
    now_s = app.clock.wall()
    file = path or free_name(Path(backup_name(app.name, now_s)))
    written_at = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="seconds")
    write_backup(file, BackupHeader(app.name, table or app.table_name, app.stream_name, written_at, command), rows)
    return file


def exported_tables(
    doors: Doors, path: Path | None, tables: Mapping[str, Sequence[Row]]
) -> list[tuple[str, Path, int]]:
    """Save each table in a file of its own: (table, file, rows). Raises BackupError."""
    app = doors.app
    first = path or free_name(Path(backup_name(app.name, app.clock.wall())))
    written = []
    for name, rows in tables.items():
        file = first if name == app.table_name else first.with_name(f"{first.stem}-{name}{first.suffix}")
        save_rows("export", app, rows, file, name)
        written.append((name, file, len(rows)))
    return written
