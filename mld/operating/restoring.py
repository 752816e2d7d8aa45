"""`mld restore`: puts leases back into the table, from a file of `mld export` or from one that an act has saved.

It refuses leases of another stream, and leases that would skip records by moving a checkpoint forward, unless the
operator allows that. Other rows of the file are not restored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mld.core.steps import finish
from mld.core.stream_ids import StreamId
from mld.leases import rows
from mld.leases.lease import Lease, within_stream
from mld.leases.table import TableScan
from mld.operating.application import Application, act_on
from mld.operating.backup import BackupHeader, read_backup
from mld.operating.held_writes import put_back, remove, rewrite
from mld.operating.one_stream import listed, of_stream, stream_id_in, streams_in
from mld.operating.options import Invocation
from mld.operating.owner_life import Observed
from mld.operating.plan import (
    ActPlan,
    ActRefusedError,
    Change,
    RawTable,
    Row,
    raw_table,
)
from mld.operating.reset_rows import direction, is_of_another_shard, words_of
from mld.operating.short_ids import names_of
from mld.properties.settings import Settings, StreamSetting
from mld.shards.graph import ShardGraph, id_order
from mld.shards.identity import foreign_evidence, oddity
from mld.tracking.stream_list import account_and_name, identify


@dataclass(frozen=True, slots=True)
class Saved:
    """The leases of a file. The other rows in the file are not restored."""

    header: BackupHeader
    leases: tuple[Lease, ...]
    rows: Mapping[str, Row]
    """The rows of these leases as they are in the file, by key."""
    stream: str | None = None
    """Identifier of the stream to which these leases belong, if the file has leases of several streams."""


def read_saved(path: Path) -> Saved:
    """Read the leases in a file of `mld export`. Raises ActRefusedError if a lease cannot be read or there is none;
    BackupError.
    """
    header, lines = read_backup(path)
    leases: dict[str, Lease] = {}
    raw: dict[str, Row] = {}
    for row in lines:
        try:
            lease = rows.parse_row(row)
        except rows.CorruptRowError as error:
            raise ActRefusedError(f"{path}: {error}") from error
        if lease is not None:
            leases[lease.key], raw[lease.key] = lease, row
    if not leases:
        raise ActRefusedError(f"{path} holds no lease")
    return Saved(header, tuple(leases.values()), raw)


def of_its_stream(saved: Saved, settings: Settings, setting: StreamSetting | None, name: str | None) -> Saved:
    """Return the leases of the stream that is to be restored, with plain shard ids as keys.

    `setting` is that stream, if the properties file names several. Raises ActRefusedError if the saved file has no
    lease of the stream, or if several of its streams may be meant.
    """
    ids = streams_in(saved.leases)
    if not ids:
        meant = settings.stream_name if setting is None else setting.stream_name
        if saved.header.stream not in ("", meant):
            raise ActRefusedError(f"the file has the leases of stream {saved.header.stream}, not of {meant}")
        return saved
    if setting is not None:
        stream = stream_id_in(RawTable((), TableScan(saved.leases)), setting, name)
    else:
        stream = _newest_of(settings, ids)
    leases = tuple(within_stream(lease) for lease in saved.leases if lease.stream == stream)
    raw = {lease.key: _within(saved.rows[f"{stream}:{lease.key}"], lease.key) for lease in leases}
    return Saved(saved.header, leases, raw, stream)


def _newest_of(settings: Settings, ids: Sequence[StreamId]) -> str:
    """Return the identifier of the stream that the properties file names. If that stream was made again, it has several
    identifiers; return the newest.

    Raises ActRefusedError if the saved file has no lease of that stream, or if streams of several accounts have the
    name.
    """
    account, name = None, settings.stream_name
    if settings.stream_arn is not None:
        account, name = account_and_name(settings.stream_arn)
    found = [one for one in ids if one.name == name and account in (None, one.account)]
    if not found:
        raise ActRefusedError(f"the file has leases of {names_of(ids)}, and the properties file names stream {name}")
    if len({one.account for one in found}) > 1:
        raise ActRefusedError(
            f"the file has leases of {names_of(found)}, of several accounts: name the stream by streamArn instead of "
            "streamName"
        )
    return str(max(found, key=lambda one: one.epoch))


def _within(row: Row, key: str) -> Row:
    """Return a row of a table of several streams as a row of a table of one stream, under this key."""
    own = {name: value for name, value in row.items() if name not in (rows.STREAM, rows.SHARD)}
    return own | {rows.KEY: {"S": key}}


def require_same_table(saved: Saved, application: str, table: str) -> None:
    """Raise ActRefusedError if the file was saved from another application or table."""
    header = saved.header
    if (header.application, header.table) != (application, table):
        raise ActRefusedError(
            f"use --from-another to restore this file: it is of application {header.application}, table "
            f"{header.table}, not of application {application}, table {table}"
        )


@dataclass(frozen=True, slots=True)
class Restoration:
    """What a restoration wants, found once from the file and the listed shards. It can then be planned as often as
    needed.
    """

    saved: Saved
    graph: ShardGraph
    may_skip: bool = False

    def plan(self, table: RawTable, me: str) -> ActPlan:
        """Return the changes that are left to write.

        Raises ActRefusedError if a checkpoint would move forward, which skips records, unless `may_skip` is set.
        """
        present = {lease.key: lease for lease in table.scan.leases}
        changes: list[Change] = []
        forward: list[str] = []
        for lease in sorted(self.saved.leases, key=lambda one: id_order(one.key)):
            row = present.get(lease.key)
            if row is None:
                write = put_back(self.saved.rows[lease.key], me)
                changes.append(Change(f"put back at {lease.checkpoint}", write))
            elif row.checkpoint != lease.checkpoint or is_of_another_shard(row, lease):
                changes.append(Change(words_of(lease, row), rewrite(row, as_new(lease), me)))
                # An odd row is at a checkpoint that its shard never reached, so replacing the row skips nothing.
                if direction(row.checkpoint, lease.checkpoint) != "back" and not self._is_odd(row):
                    forward.append(lease.key)
        if forward and not self.may_skip:
            raise ActRefusedError(
                f"the file is ahead of the table for {names_of(forward)}: records between the two would be skipped; "
                "--skip-forward restores these as well"
            )
        gone, kept = self._newer(present)
        for key in gone:
            changes.append(
                Change(f"its row is deleted (at {present[key].checkpoint}); the shard is read again", remove(key, me))
            )
        return ActPlan(
            f"{len(self.saved.leases)} leases of {self.saved.header.written_at}",
            tuple(changes),
            tuple(self._notes(forward, kept)),
        )

    def _is_odd(self, row: Lease) -> bool:
        """Return whether the row cannot be one of its shard, such as a row of a deleted stream. Then the shard was
        never read up to the row's checkpoint.
        """
        shard = self.graph.shards.get(row.key)
        return shard is not None and oddity(shard, row) is not None

    def _newer(self, present: Mapping[str, Lease]) -> tuple[list[str], list[str]]:
        """Return the keys of rows that the table has (`present`) and the file lacks: those to delete and those to keep,
        each sorted by shard id.

        A row is deleted if its shard descends from one that is unfinished in the file. That shard is read again, and at
        its end the rows of its children are created anew.
        """
        unfinished = {lease.key for lease in self.saved.leases if not lease.is_complete} & self.graph.shards.keys()
        below = finish(self.graph.below(unfinished))
        newer = sorted(present.keys() - self.saved.rows.keys(), key=id_order)
        return [key for key in newer if key in below], [key for key in newer if key not in below]

    def _notes(self, forward: Sequence[str], kept: Sequence[str]) -> Iterable[str]:
        """Yield notes on records that are skipped, shards that Kinesis lists no longer, and rows that are left
        alone.
        """
        trimmed = [lease.key for lease in self.saved.leases if lease.key not in self.graph.shards]
        if forward:
            yield f"records are skipped in {names_of(forward)}"
        if trimmed:
            yield f"Kinesis has no records any more of {names_of(trimmed)}"
        if kept:
            yield f"not in the file and left alone: {names_of(kept)}"


def as_new(lease: Lease) -> Lease:
    """Return the lease as if it had just been created at its checkpoint."""
    return Lease(
        lease.key, lease.checkpoint, parents=lease.parents, children=lease.children, hash_range=lease.hash_range
    )


async def restore_from(
    app: Application,
    invocation: Invocation,
    path: Path,
    stream: str | None,
    *,
    from_another: bool,
    may_skip: bool,
    stop_fleet: bool,
) -> int:
    """Put the leases of a file back; return the exit code. Raises ActRefusedError, BackupError, TableError.

    `stream` selects one of several streams. `from_another`: the file may be of another application or table.
    `may_skip`: checkpoints may move forward. `stop_fleet`: leases are taken from living workers.
    """
    saved, settings = read_saved(path), app.settings
    if not from_another:
        require_same_table(saved, settings.application_name, settings.lease_table.name)
    saved = of_its_stream(saved, settings, app.setting, stream)
    stored = await app.table_or_none()
    observed = stored or Observed(raw_table(()))
    if app.setting is not None:
        id_ = saved.stream
        if id_ is None:  # the file is of a table of one stream; the leases get this stream's identifier in the table
            await app.require_no_workers(observed, "stop them first: they do not know that this stream has leases")
            id_ = await _identifier(app, app.setting, observed.table)
        app = replace(app, stream=id_)
        observed = replace(observed, table=of_stream(observed.table, id_))
    shards = await app.shards()  # without the table's rows: the file may replace rows of another stream
    foreign = finish(foreign_evidence(shards, saved.leases))
    if foreign is not None:
        raise ActRefusedError(foreign.replace("the lease table", f"the file {path}", 1))
    if stored is None and invocation.execute:
        await app.leases.ensure()
    restoration = Restoration(saved, ShardGraph(shards), may_skip)
    return await act_on(app, "restore", invocation, restoration.plan, observed, stop_fleet=stop_fleet)


async def _identifier(app: Application, setting: StreamSetting, table: RawTable) -> str:
    """Return the identifier that the stream's leases get in the table, `ACCOUNT:NAME:EPOCH`. The fleet's list of
    streams and the leases in the table show which epoch is in use. Raises ActRefusedError, StreamError.
    """
    summary = await app.streams.describe()
    found = identify(
        setting.name,
        summary.arn,
        summary.created_ms,
        epoch=setting.epoch,
        listed=listed(table).current().get(setting.name),
        in_table=streams_in(table.scan.leases),
    )
    if isinstance(found, str):
        raise ActRefusedError(found)
    return str(found)
