"""Files in a directory of a POSIX file system, exactly once: flat, or partitioned as Hive does it.

Flat: each commit is one directory, `mld_commit=<number>`, with its data files and a copy of its ledger entry. It
appears by one rename, so a reader sees the whole of a commit or nothing of it. Readers that know partitions (Spark,
DuckDB, Arrow) show the number as a column `mld_commit`.

Partitioned: the files of a commit are renamed one by one into `<column>=<value>/` directories, and every name begins
with the number of its commit. A reader may see a part of the newest commit meanwhile, and no record twice.

`commit.journal` says why a commit happens once, whatever dies. Spark writes into a private staging area, so what its
own committer leaves there (`_temporary`, `_SUCCESS`, late attempts of tasks) never gets into the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from processors.spark.commit import ledger
from processors.spark.commit.admission import AdmittedSink, admission_of
from processors.spark.commit.journal import Journal, SinkJournal, signature
from processors.spark.commit.ledger import Columns, ColumnsClash, FileMove, LedgerEntry
from processors.spark.commit.store import Store, as_sink_error
from processors.spark.commit_stages import stage
from processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from processors.spark.sink_port import Published, SinkRefused, SinkSpec
from processors.spark.sinks.spark_write import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COMMIT = "mld_commit"
COPY = "_ledger.json"
FILES_MAX = 20_000
"""Files of one batch. More means a partition column with (nearly) as many values as records: no table to read."""
BY_PLACE = frozenset(("csv",))
"""Formats whose columns have no names once they are written."""
DEFAULTS = {"parquet": {"parquet.dictionary.page.size": str(128 * 1024)}}
"""Options that the user's win over. A batch makes small files, in which the usual dictionary of 1 MB would hold nearly
all values of a column that has no repetitions; building it in vain takes a fifth of a batch's CPU."""
OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class FileSink(AdmittedSink):
    """What both layouts share: stage, commit, and the rules of columns. Exactly once."""

    exactly_once = True

    def __init__(
        self, spec: SinkSpec, store: Store, journal: SinkJournal | None = None, place: str | None = None
    ) -> None:
        """Spark writes to `store`; `journal` publishes from there, by default within it. `place` is for people."""
        self._spec = spec
        self.name = spec.name
        self._store = store
        self.place = store.uri("") if place is None else place
        self._journal = Journal(store, spec.name) if journal is None else journal
        self.before_commit: Callable[[Columns, list[str]], None] = lambda columns, files: None
        """Hears what a commit is about to bring, once it is staged: columns, and files by their paths in the table."""
        self._admission = admission_of(spec.writer, spec.name, self.place, shared=spec.shared)
        by = f" by {','.join(spec.partition_by)}" if spec.partition_by else ""
        self._layout = f"{spec.format}{by}"

    def open(self) -> HighWaterMarks:
        head = self._journal.open() or self._lost_ledger()
        self._check_layout(head)
        return self._admission.marks(self._journal.claim(head, self._admission))

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        columns = self._columns(frame)
        self._check(self._journal.head(), batch, columns)  # before the job: a zombie need not run it
        with self._journal.staged() as token:
            return self._publish(frame, columns, batch, batch_id, token)

    def _publish(
        self, frame: DataFrame | None, columns: Columns, batch: ShardSpans, batch_id: str, token: str
    ) -> Published:
        rows = self._write(frame, token) if frame is not None else 0
        files = self._clean(token, rows)
        if files:
            self.before_commit(columns, files)

        def follow(head: LedgerEntry | None) -> LedgerEntry:
            self._check(head, batch, columns)
            entry = self._admission.following(
                head,
                batch,
                token,
                layout=self._layout,
                columns=self._widened(head, columns),
                moves=self._moves(head.number + 1 if head else 1, files),
                batch_id=batch_id,
                **signature(),
                rows=rows,
            )
            self._accompany(entry, token)
            return entry

        entry = self._journal.commit(token, follow)
        return Published(self._admission.marks(entry), entry.number, rows)

    def _write(self, frame: DataFrame, token: str) -> int:
        stage("staging")
        return write(
            frame,
            sink=self.name,
            format=self._spec.format,
            options={**DEFAULTS.get(self._spec.format, {}), **self._spec.options, **OPTIONS},
            mode="error",
            path=self._store.uri(self._journal.data(token)),
            partition_by=self._spec.partition_by,
        )

    def _clean(self, token: str, rows: int) -> list[str]:
        """Keep the data files only, make them durable, and list them."""
        stage("staged")
        data = self._journal.data(token)
        try:
            found = [name for name, _ in self._store.files(data)] if self._store.exists(data) else []
            files = [name for name in found if not _hidden(name)] if rows else []
            if rows and not files:
                self._journal.check_owned(token)
                raise SinkRefused(
                    f"sink {self.name}: Spark has written {rows} rows to {self._store.uri(data)}, but their files are "
                    "not to be seen from here; path has to be on a file system that this host and all executors share"
                )
            if len(files) > FILES_MAX:
                raise SinkRefused(
                    f"sink {self.name}: a batch of {rows} rows makes {len(files)} files; partition by something coarser"
                )
            if files:
                for name in found:
                    if _hidden(name):
                        self._store.remove(f"{data}/{name}")
                self._store.sync_below(data)
                self._store.sync(str(PurePosixPath(data).parent))
            stage("durable")
            return files
        except OSError as error:
            raise as_sink_error(error, f"sink {self.name}: making a batch durable") from error

    def _columns(self, frame: DataFrame | None) -> Columns:
        if frame is None:
            return ()
        columns = tuple((field.name, field.dataType.simpleString()) for field in frame.schema.fields)
        self._check_columns(columns)
        return columns

    def _check(self, head: LedgerEntry | None, batch: ShardSpans, columns: Columns) -> None:
        """Whether the batch may follow this head."""
        self._check_layout(head)
        self._admission.check(head, batch)
        self._widened(head, columns)

    def _check_layout(self, head: LedgerEntry | None) -> None:
        if head and head.layout != self._layout:
            raise SinkRefused(
                f"sink {self.name}: {self.place} holds {head.layout}, mld.spark.sink.{self.name}.* asks for "
                f"{self._layout}; use a new directory"
            )

    def _widened(self, head: LedgerEntry | None, columns: Columns) -> Columns:
        have = head.columns if head else ()
        if not columns:
            return have
        try:
            return ledger.widened(have, columns, by_place=self._spec.format in BY_PLACE)
        except ColumnsClash as error:
            raise SinkRefused(f"sink {self.name}: {error}; cast it in the pipeline, or use a new directory") from error

    def _check_columns(self, columns: Columns) -> None:
        raise NotImplementedError

    def _moves(self, number: int, files: list[str]) -> tuple[FileMove, ...]:
        raise NotImplementedError

    def _accompany(self, entry: LedgerEntry, token: str) -> None:
        """What is staged beside the data once the entry is known."""

    def _lost_ledger(self) -> LedgerEntry | None:
        """The newest entry that is found outside of an empty ledger."""
        return None


class FlatSink(FileSink):
    """One directory per commit."""

    def _check_columns(self, columns: Columns) -> None:
        if any(name.lower() == COMMIT for name, _ in columns):
            raise SinkRefused(f"sink {self.name}: the column {COMMIT} is the sink's own; rename it in the pipeline")

    def _moves(self, number: int, files: list[str]) -> tuple[FileMove, ...]:
        return (FileMove("data", f"{COMMIT}={number:0{ledger.NUMBER_DIGITS}d}"),) if files else ()

    def _accompany(self, entry: LedgerEntry, token: str) -> None:
        if entry.moves:
            self._store.write(f"{self._journal.data(token)}/{COPY}", ledger.encode(entry))

    def _lost_ledger(self) -> LedgerEntry | None:
        """Whoever removes `_mld` and keeps the data has only lost the newest copy's number of empty batches."""
        commits = [name for name in self._store.names("") if name.startswith(f"{COMMIT}=")]
        if not commits:
            return None
        newest = f"{max(commits)}/{COPY}"
        assert isinstance(self._journal, Journal)
        try:
            return self._journal.restore(self._store.read(newest))
        except (OSError, ValueError) as error:
            raise SinkRefused(
                f"sink {self.name}: {self._store.uri('')} holds commits, but no ledger, and {newest} cannot be read "
                f"({error}); restore _mld, or use a new directory"
            ) from error


class PartitionedSink(FileSink):
    """Hive's layout."""

    def _check_columns(self, columns: Columns) -> None:
        names = {name.lower() for name, _ in columns}
        for column in self._spec.partition_by:
            if column.lower() not in names:
                raise SinkRefused(f"sink {self.name}: partitionBy names {column}, the frame has no such column")
            if column.startswith(("_", ".")):
                raise SinkRefused(f"sink {self.name}: readers skip directories like {column}=; rename the column")

    def _moves(self, number: int, files: list[str]) -> tuple[FileMove, ...]:
        prefix = f"c{number:0{ledger.NUMBER_DIGITS}d}-"
        paths = map(PurePosixPath, files)
        return tuple(FileMove(f"data/{path}", str(path.with_name(prefix + path.name))) for path in paths)


def _hidden(name: str) -> bool:
    """As Spark's readers see it: `_x` and `.x` are no data, `_x=1` is a partition."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in PurePosixPath(name).parts)
