"""Files in a directory of a disk or of a bucket, exactly once: flat, or partitioned as in Hive.

Files are moved one by one into the directory or its `<column>=<value>/` directories, and every name begins with the
number of its commit. A commit of one file appears at once. While a commit of several files is being moved, a reader may
see a part of it, but never a record twice.

`commit.journal` explains why a commit happens exactly once, whichever process dies. Spark writes into a staging area,
so leftovers of its own committer (`_temporary`, `_SUCCESS`, late attempts of tasks) never get into the sink. For a sink
on S3, Spark in local mode writes to a directory of this machine, and needs no S3 client. The executors of a cluster
write to a staging area in the bucket by S3A (`session.s3a`).

An entry of the ledger has the marks after its commit. A mark is the position up to which the records of a shard are in
the sink. The newest entry is the head. `stage(...)` names a place in the code for tests, which kill or hold the process
there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mld.processors.spark.commit.admission import Admission
from mld.processors.spark.commit.admitted_sink import AdmittedSink
from mld.processors.spark.commit.faults import stage
from mld.processors.spark.commit.journal import DATA, STAGING, Journal
from mld.processors.spark.commit.ledger import Columns, FileMove, LedgerEntry
from mld.processors.spark.commit.ledger_files import HOME, commit_of, published_name
from mld.processors.spark.commit.store import Store, failures
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sentences import first_line
from mld.processors.spark.sink_port import Published, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.columns import SinkColumns, fitted, of_ledger, to_ledger
from mld.processors.spark.sinks.frame_writer import write
from mld.processors.spark.sinks.partitions import by_directories
from mld.processors.spark.sinks.stored_letters import StoredLetters
from mld.properties.spark_places import TAKEN_BY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mld.spark")
BY_PLACE = frozenset(("csv",))
"""Formats whose files do not contain the names of their columns."""
DEFAULTS = {"parquet": {"parquet.dictionary.page.size": str(128 * 1024)}}
"""Default options, which the user's options overrule. The files of a batch are small. With Parquet's default dictionary
size of 1 MB nearly all values of a column without repetitions would go into a dictionary that saves nothing, and costs
a fifth of a batch's CPU time.
"""
OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
"""Options that the user cannot overrule: Spark writes no file `_SUCCESS`."""
LOOKED_AT = 10_000
"""How many files of a directory without a ledger are searched for names that only commits give."""
MANY_FILES = 1_000
"""A commit of more files than this causes a warning."""
IN_FILES = " in files"
"""Text at the end of a layout, for sinks on disks, in entries of mld 0.2.0."""
COMMITTER = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""With version 2, each task moves its own files to their places in the staging area when the driver allows it. This
saves a copy of each file.
"""


class FileSink(AdmittedSink):
    """A directory of files, written exactly once."""

    def __init__(self, spec: SinkSpec, store: Store, staging: Store | None = None) -> None:
        """Prepare a sink in `store`. Spark writes into `staging`, which by default is the same store."""
        self._spec = spec
        self.name = spec.name
        self._store = store
        self._staging = staging or store
        self.place = store.place
        self._journal = Journal(store, spec.name)
        self._columns = SinkColumns(spec.name)
        self._admission = Admission(spec.writer, spec.name, self.place, shared=spec.shared)
        self._layout = spec.format + (f" by {','.join(spec.partition_by)}" if spec.partition_by else "")

    def open(self) -> HighWaterMarks:
        """Finish and clean up earlier commits, check that the directory fits, and return the marks."""
        with failures(f"sink {self.name}: opening its ledger"):
            for name, owner in TAKEN_BY.items():
                if any(self._store.files(name)):
                    raise SinkRefused(
                        f"sink {self.name}: {self.place} has {name}, as {owner} keeps it, and readers go by that "
                        "alone: they would never see our files; use a new directory"
                    )
        head = self._journal.open()
        if head is None:
            self._check_new()
        self._check_layout(head)
        return self._admission.marks(head)

    def _check_new(self) -> None:
        """Raise SinkRefused if a directory without a ledger has files of commits: the marks are lost, so all records
        would be written again."""
        with failures(f"sink {self.name}: looking for files without a ledger"):
            found = (path for path in map(PurePosixPath, self._store.files("")) if path.parts[0] != HOME)
            for path in islice(found, LOOKED_AT):
                # If there is a head by now, another writer has just made its first commit.
                if commit_of(path.name) is None or self._journal.head() is not None:
                    continue
                raise SinkRefused(
                    f"sink {self.name}: {self.place} holds files of commits, {path} among them, but no ledger; restore "
                    f"{HOME}, or use a new directory"
                )

    def newest(self) -> int:
        """Finish all commits, and return the number of the newest; 0 if there is none. Raises SinkError."""
        head = self._journal.open()
        return head.number if head else 0

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        """Run the job of Spark that writes the frame into a staging area, and commit that area by the journal. After a
        race that another writer won, the journal calls `following` again with the new head. Raises SinkError.
        """

        def following(
            head: LedgerEntry | None, token: str = "", rows: int = 0, files: Sequence[str] = ()
        ) -> LedgerEntry:
            """Return the ledger entry that commits this batch after `head`. Raises SinkError if the batch may not
            follow it.
            """
            self._check_layout(head)
            entry = self._entry_after(head, batch, batch_id, token=token, layout=self._layout, rows=rows)
            columns = head.columns if head else ()
            if frame is not None:
                as_wanted, columns = self._fitted(head, frame)
                # The frame was converted for an older head, and so were the staged files.
                if token and as_wanted is not frame:
                    raise SinkError(f"sink {self.name}: another writer has added columns meanwhile; it is tried again")
            return replace(entry, columns=columns, moves=_moves(entry.number, files))

        head = self._journal.head()
        following(head)  # before the job, so that a worker that has lost its lease does not run it
        frame = frame if frame is None else self._fitted(head, frame)[0]
        try:
            with self._journal.staged() as token:
                rows = self._written(frame, token) if frame is not None else 0
                files = self._durable_files(token, rows)
                entry = self._journal.commit(token, lambda head: following(head, token, rows, files))
                return self._published(entry, rows)
        finally:
            if self._staging is not self._store:
                with suppress(OSError):
                    self._staging.remove(STAGING)

    def _written(self, frame: DataFrame, token: str) -> int:
        """Have Spark write the frame, and return the number of its rows."""
        stage("staging")
        if by := self._spec.partition_by:
            frame = by_directories(frame, by)
        elif self._spec.one_file:
            frame = frame.repartition(1)  # with `coalesce` the whole pipeline would run in one task
        options = {**DEFAULTS.get(self._spec.format, {}), **self._spec.options, **OPTIONS}
        path = self._staging.uri(self._journal.data(token))
        return write(frame, replace(self._spec, options=options, mode="error", path=path))

    def _durable_files(self, token: str, rows: int) -> list[str]:
        """Make the data files in the staging area durable, and return their names. `rows` is the number of rows that
        Spark has written. Files that Spark has written for itself are left out; they are removed with the staging area.

        Raises SinkRefused if there are rows but no files: then this process and Spark see different file systems.
        """
        stage("staged")
        data = self._journal.data(token)
        with failures(f"sink {self.name}: making a batch durable"):
            files = [name for name in sorted(self._staging.files(data)) if not _hidden(name)] if rows else []
            if files:
                self._staging.persist(f"{STAGING}/{token}", [f"{DATA}/{name}" for name in files])
            elif rows:  # the files are gone if another writer has cleared the area away as abandoned
                self._journal.check_owned(token, self._journal.head())
                raise SinkRefused(
                    f"sink {self.name}: Spark has written {rows} rows to {self._staging.uri(data)}, but their files "
                    "are not to be seen from here: path has to be on a file system that this host and all executors "
                    "share, and on S3 mld.spark.s3.endpoint and mld.spark.conf.spark.hadoop.fs.s3a.endpoint have to "
                    "agree"
                )
            stage("durable")
            if len(files) > MANY_FILES:
                log.warning("sink %s: %d files of %d rows: partition by something coarser", self.name, len(files), rows)
            return files

    def _fitted(self, head: LedgerEntry | None, frame: DataFrame) -> tuple[DataFrame, Columns]:
        """Return the frame converted to the directory's columns, and the directory's columns after this batch. Raises
        SinkRefused."""
        for column in self._spec.partition_by:
            if column.lower() not in map(str.lower, frame.columns):
                raise SinkRefused(f"sink {self.name}: partitionBy names {column}, the frame has no such column")
            if column.startswith(("_", ".")):
                raise SinkRefused(f"sink {self.name}: readers skip directories like {column}=; rename the column")
        columns = head.columns if head else ()
        try:
            had = of_ledger(columns, frame.schema)
        except Exception as error:  # the texts of types may be anything
            what = f"sink {self.name}: a type of a column in its ledger is none: {first_line(error)}"
            raise SinkRefused(f"{what}; restore {HOME}, or use a new directory") from error
        whole = self._columns.grown(had, frame.schema)
        if self._spec.format in BY_PLACE and had.fields and not len(had) == len(whole) == len(frame.columns):
            raise SinkRefused(
                f"sink {self.name}: its columns are {', '.join(had.names)}, those of this batch are "
                f"{', '.join(frame.columns)}; csv has no names, so use a new directory"
            )
        return fitted(frame, whole), to_ledger(columns, whole)

    def _check_layout(self, head: LedgerEntry | None) -> None:
        """Raise SinkRefused if the directory has files of another format or partitioning."""
        if head and head.layout.removesuffix(IN_FILES) != self._layout:
            raise SinkRefused(
                f"sink {self.name}: {self.place} holds {head.layout}, mld.spark.sink.{self.name}.* asks for "
                f"{self._layout}; use a new directory"
            )

    def letters(self) -> StoredLetters:
        """Return the stored letters, if this sink is a dead letter."""
        return StoredLetters(self._store)


def _moves(number: int, files: Sequence[str]) -> tuple[FileMove, ...]:
    """Return the moves of the files of commit `number` from the staging area to their published names."""
    paths = map(PurePosixPath, files)
    return tuple(FileMove(f"{DATA}/{path}", str(path.with_name(published_name(number, path.name)))) for path in paths)


def _hidden(name: str) -> bool:
    """Return whether Spark's readers skip a file: a part of its path begins with a dot, or with `_` and is not a
    partition such as `_x=1`.
    """
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in PurePosixPath(name).parts)


class ExecutorFileSink(FileSink):
    """A directory of files in a bucket, to which executors write themselves. The first `open` tries whether they
    can."""

    def __init__(self, spec: SinkSpec, store: Store, spark: SparkSession) -> None:
        super().__init__(replace(spec, options={**COMMITTER, **spec.options}), store)
        self._untried: SparkSession | None = spark

    def open(self) -> HighWaterMarks:
        """Finish what a process has committed but not completed, and return the committed marks. The first time, also
        try whether executors can write to the sink. Raises SinkError.
        """
        marks = super().open()
        if self._untried is not None:
            self._try_executors(self._untried)
            self._untried = None
        return marks

    def _try_executors(self, spark: SparkSession) -> None:
        """Have executors write a file into a staging area. Raises SinkError and SinkRefused."""
        options = {**COMMITTER, **OPTIONS}
        try:
            with self._journal.staged() as token:
                path = self._store.uri(self._journal.data(token))
                write(spark.range(1), SinkSpec(self.name, "json", path, options, mode="error"))
                self._durable_files(token, rows=1)
        except SinkError as error:
            raise (SinkRefused if isinstance(error, SinkRefused) else SinkError)(
                f"sink {self.name}: executors cannot write to {self.place}: {error}. They use the "
                "AwsCredentialsProvider and the mld.spark.s3 keys of the daemon's file on their own nodes, and "
                "mld.spark.conf.spark.hadoop.fs.s3a.* replaces them"
            ) from error
