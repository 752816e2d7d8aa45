"""`mld export`: saves all rows of an application's tables in files."""

from __future__ import annotations

from pathlib import Path

from mld.core.terminal import EXIT_OK
from mld.operating.acting import tell
from mld.operating.application import Application
from mld.operating.backup import backup_name, free_name, save_rows
from mld.operating.table_access import read_table


async def export_tables(app: Application, path: Path | None) -> int:
    """Save all rows, each table in its own file; return the exit code. Raises BackupError, TableError.

    The tables are the lease table, and those of KCL 3.0 to 3.4 that exist and have rows.
    """
    settings, now_s = app.settings, app.clock.wall()
    first = path or free_name(Path(backup_name(settings.application_name, now_s)))
    tables = {settings.lease_table.name: (await read_table(app.calls, app.clock)).rows}
    for name in (settings.coordinator_state_table.name, settings.worker_metrics_table.name):
        if found := await app.rows_of(name):
            tables[name] = found
    for name, found in tables.items():
        file = first if name == settings.lease_table.name else first.with_name(f"{first.stem}-{name}{first.suffix}")
        save_rows("export", settings, found, now_s, file, name)
        tell(f"{len(found)} rows of {name} are saved in {file}")
    return EXIT_OK
