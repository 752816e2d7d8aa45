"""Files in a directory of a POSIX file system, exactly once: flat, or partitioned as Hive does it.

Flat: the files of a commit stand in the one directory, as `c<number>-<index>.<suffix>`. A commit of one file appears by
one rename, so a reader sees the whole of it or nothing. Several files are renamed one by one: a reader may see a part
of the newest commit meanwhile, and no record twice. Beside them, in `_mld_copies`, are copies of the newest entries of
the ledger, each put there before the first file of its commit: whoever loses `_mld` has not lost the marks.

Partitioned: the files of a commit are renamed one by one into `<column>=<value>/` directories,
and every name begins with the number of its commit. A reader may see a part of the newest commit meanwhile, and no
record twice.

`commit.journal` says why a commit happens once, whatever dies. Spark writes into a private staging area, so what its
own committer leaves there (`_temporary`, `_SUCCESS`, late attempts of tasks) never gets into the sink.

The files of a dead letter, by the commits that have brought them.

Files on S3, exactly once: numbered files in one directory, or partitioned as Hive does it.

Spark writes to a directory of this machine, so it needs no S3 client; `commit.s3_journal` uploads and publishes. On a
cluster, executors write to the staging area of the bucket with a client of their own (`session.lakehouse`). Every
name begins with the number of its commit. Without `partitionBy` a commit is one file, unless
`mld.spark.sink.<name>.files = many`, and a reader sees the whole of it or nothing. With several files, a reader may
see a part of the newest commit meanwhile, and no record twice.

Files in the directories of their partitions, as Hive lays them out, with a bound on how many of these a sink begins.

A batch whose rows are all of partitions that were written lately is written in one job. Any other one is looked at
first (`new_partitions`); rows beyond the bound, and rows whose values no directory can be called by, go to `BEYOND`,
which readers skip, in files that have all columns. Both are one commit.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from mld.aws.objects import NotMatched, ObjectError
from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.journal import LEDGER, AdmittedSink, Journal, SinkJournal
from mld.processors.spark.commit.ledger import Columns, ColumnsClash, FileMove, LedgerEntry, admission_of
from mld.processors.spark.commit.s3_journal import AT_ONCE, Objects, S3Journal, S3Place, S3Staging, object_failures
from mld.processors.spark.commit.store import PosixStore, StagingStore, Store, as_sink_error, stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sink_port import JobFailed, Published, SinkError, SinkRefused, SinkSpec, failure, sentence
from mld.processors.spark.sinks.new_partitions import KEY, PartitionBound, by_partition, computed, frame_of, key_of
from mld.properties.spark import TAKEN_BY

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

IDENTITY_FILE = "_mld_replay"
"""Beside the files, and not in `_mld`, so that it outlives the ledger as its numbers do; readers skip it."""
_NAME = re.compile(r"c(\d+)-[^/]+", re.ASCII)
OF_OLD = "mld_commit="
"""Begins the names of the directories that mld 0.1 kept the files of a commit in."""


class StoredLetters:
    """The files of a dead letter, in a directory of a file system. Raises SinkError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def commits(self) -> dict[int, list[str]]:
        """Return the names of all files, by the number of their commit, sorted."""
        try:
            names = self._store.names("")
            if old := [name for name in names if name.startswith(OF_OLD)]:
                raise SinkRefused(
                    f"the dead letter has {min(old)}, as mld 0.1 kept letters, which this version does not read; put "
                    "its records into the stream by a program of your own, and move the directory elsewhere"
                )
            return _by_commit(names)
        except OSError as error:
            raise as_sink_error(error, "listing the dead letter") from error

    def read(self, name: str) -> bytes:
        try:
            return self._store.read(name)
        except OSError as error:
            raise as_sink_error(error, f"reading {name} of the dead letter") from error

    def identity(self) -> str:
        """Return a name that this directory has got once, and keeps for as long as its numbers go on."""
        try:
            if not self._store.exists(IDENTITY_FILE):
                fresh = uuid4().hex
                draft = f"{IDENTITY_FILE}-{fresh}"
                self._store.write(draft, fresh.encode())
                self._store.take(draft, IDENTITY_FILE)  # somebody else's is as good
                self._store.remove(draft)
                self._store.sync("")
            return self._store.read(IDENTITY_FILE).decode()
        except OSError as error:
            raise as_sink_error(error, "naming the dead letter") from error


class LetterObjects:
    """The same in a bucket, below a key that ends with a slash or is empty."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def commits(self) -> dict[int, list[str]]:
        try:
            return _by_commit(one.key.removeprefix(self._prefix) for one in self._objects.list(f"{self._prefix}c"))
        except ObjectError as error:
            raise SinkError(f"listing the dead letter: {error}") from error

    def read(self, name: str) -> bytes:
        try:
            found = self._objects.get(self._prefix + name)
        except ObjectError as error:
            raise SinkError(f"reading {name} of the dead letter: {error}") from error
        if found is None:
            raise SinkError(f"reading {name} of the dead letter: it is gone")
        return found.data

    def identity(self) -> str:
        key = self._prefix + IDENTITY_FILE
        try:
            if self._objects.get(key) is None:
                with suppress(NotMatched):  # somebody else's is as good
                    self._objects.put(key, uuid4().hex.encode(), if_absent=True)
            return self.read(IDENTITY_FILE).decode()
        except ObjectError as error:
            raise SinkError(f"naming the dead letter: {error}") from error


def _by_commit(names: Iterable[str]) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for name in sorted(names):
        if (match := _NAME.fullmatch(name)) is not None:
            found[int(match[1])].append(name)
    return dict(sorted(found.items()))


UNCOUNTED = frozenset(("kafka",))
"""Spark's writer of them runs a job that no listener hears of, so that one would wait for its count for ever."""


def write(
    frame: DataFrame,
    *,
    sink: str,
    format: str,
    options: Mapping[str, str],
    mode: str,
    path: str | None,
    partition_by: tuple[str, ...] = (),
) -> int:
    """Write the frame in one job; how many rows that were. Raises JobFailed, SinkFull or SinkRefused.

    Rows are counted on the way, and so cost no job of their own; -1 for a format whose writer does not say when it has
    counted them."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    observation = Observation()
    counts = format.lower() not in UNCOUNTED
    try:
        counted = frame.observe(observation, count(lit(1)).alias("rows")) if counts else frame
        writer = counted.write.format(format).options(**options)
        if partition_by:
            writer = writer.partitionBy(*partition_by)
        writer.mode(mode).save(path)
        return int(observation.get["rows"]) if counts else -1
    except Exception as error:  # Spark's and the user's, of any kind: all of it is said to the host
        raise failure(error, f"sink {sink}: writing a batch as {format}") from error


COPIES = "_mld_copies"
"""Outside of `_mld`, so that it outlives it; readers skip what begins with an underscore."""
DRAFT_OF_COPY = "copy.json"
COPIES_KEPT, COPIES_SWEPT_FROM = 2, 8
IN_FILES = "{} in files"
"""Layout of a flat sink by its format."""
BY_PLACE = frozenset(("csv",))
"""Formats whose columns have no names once they are written."""
DEFAULTS = {"parquet": {"parquet.dictionary.page.size": str(128 * 1024)}}
"""Options that the user's win over. A batch makes small files, in which the usual dictionary of 1 MB would hold nearly
all values of a column that has no repetitions; building it in vain takes a fifth of a batch's CPU."""
OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class FileSink(AdmittedSink):
    """What both layouts share: stage, commit, and the rules of columns. Exactly once."""

    _write_options = OPTIONS
    one_file = False
    """Whether a commit without partitions is one file, if the settings do not say."""

    def __init__(
        self, spec: SinkSpec, store: StagingStore, journal: SinkJournal | None = None, place: str | None = None
    ) -> None:
        """Open a sink: Spark writes to `store`; `journal` publishes from there, by default within it. `place` is for
        people.
        """
        self._spec = spec
        self.name = spec.name
        self._store = cast("Store", store)  # a sink with a journal of its own looks at it as a StagingStore only
        self.place = store.uri("") if place is None else place
        if journal is None:
            journal = Journal(self._store, spec.name)
        self._journal = journal
        self._admission = admission_of(spec.writer, spec.name, self.place, shared=spec.shared)
        by = f" by {','.join(spec.partition_by)}" if spec.partition_by else ""
        self._layout = f"{spec.format}{by}"

    def open(self) -> HighWaterMarks:
        for name, owner in TAKEN_BY.items():
            if self._existing([name]):
                raise SinkRefused(
                    f"sink {self.name}: {self.place} has {name}, as {owner} keeps it, and readers go by that "
                    "alone: they would never see our files; use a new directory"
                )
        head = self._journal.open() or self._lost_ledger()
        self._check_layout(head)
        return self._admission.marks(head)

    def newest(self) -> int:
        """Return the number of the newest commit, which is complete then; 0 if there is none. Raises SinkError."""
        head = self._journal.open()
        return head.number if head else 0

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        columns = self._columns(frame)
        self._check(self._journal.head(), batch, columns)  # before the job: a zombie need not run it
        with self._journal.staged() as token:
            rows = self._write(frame, token) if frame is not None else 0
            files = self._clean(token, rows)

            def follow(head: LedgerEntry | None) -> LedgerEntry:
                self._check(head, batch, columns)
                entry = self._entry_after(
                    head,
                    batch,
                    batch_id,
                    token=token,
                    layout=self._layout,
                    columns=self._widened(head, columns),
                    moves=self._moves(head.number + 1 if head else 1, files),
                    rows=rows,
                )
                self._accompany(entry, token)
                return entry

            entry = self._journal.commit(token, follow)
            self._committed(entry)
            return self._published(entry, rows)

    def _write(self, frame: DataFrame, token: str) -> int:
        stage("staging")
        wanted = self.one_file if self._spec.one_file is None else self._spec.one_file
        if wanted and not self._spec.partition_by:
            frame = frame.repartition(1)  # not `coalesce`, with which the whole pipeline would run in one task
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
        """Check whether the batch may follow this head."""
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
        """Stage what stands beside the data once the entry is known."""

    def _committed(self, entry: LedgerEntry) -> None:
        """Clear away what a commit has left over."""

    def _existing(self, directories: list[str]) -> set[str]:
        """Return those of the directories of the sink that exist."""
        return set(filter(self._store.exists, directories))

    def _lost_ledger(self) -> LedgerEntry | None:
        """Return the newest entry that is found outside of an empty ledger."""
        return None


class FlatSink(FileSink):
    """All files in one directory."""

    def __init__(self, spec: SinkSpec, store: Store) -> None:
        super().__init__(spec, store)
        self._layout = IN_FILES.format(self._layout)

    def letters(self) -> StoredLetters:
        """Return the files of a dead letter."""
        return StoredLetters(self._store)

    def _check_columns(self, columns: Columns) -> None:
        pass

    def _moves(self, number: int, files: list[str]) -> tuple[FileMove, ...]:
        if not files:
            return ()
        digits = f"{number:0{ledger.NUMBER_DIGITS}d}"
        copy = FileMove(DRAFT_OF_COPY, f"{COPIES}/{ledger.entry_name(number)}")
        targets = (f"c{digits}-{index:05d}{_suffixes(name)}" for index, name in enumerate(files))
        return (copy, *(FileMove(f"data/{name}", target) for name, target in zip(files, targets, strict=True)))

    def _accompany(self, entry: LedgerEntry, token: str) -> None:
        if entry.moves:
            draft = PurePosixPath(self._journal.data(token)).with_name(DRAFT_OF_COPY)
            self._store.write(str(draft), ledger.encode(entry))

    def _committed(self, entry: LedgerEntry) -> None:
        """Remove old copies. Failing to clean is no failure."""
        if not entry.moves:
            return
        with suppress(OSError):
            copies = self._copies()
            if len(copies) >= COPIES_SWEPT_FROM:
                # A copy that is gone and whose entry is not marked as done would be missed after a power cut.
                self._store.sync(LEDGER)
                self._remove_copies(number for number in copies[:-COPIES_KEPT] if number < entry.number)

    def _copies(self) -> list[int]:
        numbers = (ledger.number_of(name, ledger.ENTRY) for name in self._store.names(COPIES))
        return sorted(number for number in numbers if number is not None)

    def _remove_copies(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._store.remove(f"{COPIES}/{ledger.entry_name(number)}")

    def _lost_ledger(self) -> LedgerEntry | None:
        """Restore the ledger from its newest copy. Whoever removes `_mld` and keeps the data has only lost that copy's
        number of empty batches.
        """
        try:
            names, copies = self._store.names(""), self._copies()
            if self._journal.head() is not None:
                return self._journal.open()  # the first commit has come meanwhile, and these are its files
            if old := [name for name in names if name.startswith(OF_OLD)]:
                raise SinkRefused(
                    f"sink {self.name}: {self.place} has {min(old)}, as mld 0.1 kept commits, which this version does "
                    "not read, and no ledger; use a new directory"
                )
            newest = max((number for name in names if (number := ledger.commit_of(name)) is not None), default=0)
            # A copy without its files was never seen by a reader; its number is given again, to another commit.
            self._remove_copies(number for number in copies if number > newest)
            return self._restored(f"{COPIES}/{ledger.entry_name(newest)}") if newest else None
        except OSError as error:
            raise as_sink_error(error, f"sink {self.name}: looking for its lost ledger") from error

    def _restored(self, copy: str) -> LedgerEntry:
        try:
            data = self._store.read(copy)
            entry = ledger.decode(data)
        except (OSError, ValueError) as error:
            raise SinkRefused(
                f"sink {self.name}: {self._store.uri('')} holds commits, but no ledger, and {copy} cannot be read "
                f"({error}); restore _mld, or use a new directory"
            ) from error
        if missing := [move.target for move in entry.moves if not self._store.exists(move.target)]:
            raise SinkRefused(
                f"sink {self.name}: {self._store.uri('')} has no ledger, and of its newest commit {entry.number} "
                f"{missing[0]} is missing; restore _mld, or, if nobody has deleted it, delete all files of that "
                "commit: it was never acknowledged, and its records are delivered again"
            )
        assert isinstance(self._journal, Journal)
        return self._journal.restore(data)


def _suffixes(name: str) -> str:
    """Return what says how a file is to be read, such as `.snappy.parquet`."""
    _, dot, rest = PurePosixPath(name).name.partition(".")
    return f"{dot}{rest}"


def _hidden(name: str) -> bool:
    """Return whether Spark's readers skip it: `_x` and `.x` are no data, `_x=1` is a partition."""
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in PurePosixPath(name).parts)


BEYOND = "_mld_beyond"
"""Where the rows of partitions are that a sink has not begun."""
STAGED_BEYOND = f"{BEYOND}=rows"
"""The same in a staging area, with a name under which data is kept."""
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(1, 0x20)))
"""What Spark does not write into the name of a directory as it is."""
NAME_BYTES_MAX, DIRECTORY_BYTES_MAX = 255, 700
"""What file systems take as a name, and S3 as part of a key."""
RECENT_MAX = 256
"""Partitions by whose values rows are told apart in one job: the plan names them, and each may have several files."""


def directory_of(columns: Sequence[str], values: Iterable[str | None]) -> str:
    """Return the directory of a partition, as Spark names it."""
    return "/".join(
        f"{_escaped(column)}={_escaped(value) if value else NULL_PARTITION}"
        for column, value in zip(columns, values, strict=True)
    )


def is_possible(directory: str) -> bool:
    """Return whether a directory can be called so, wherever the sink is."""
    names = [name.encode() for name in directory.split("/")]
    sizes = list(map(len, names))
    return b"\0" not in b"".join(names) and max(sizes) <= NAME_BYTES_MAX and sum(sizes) <= DIRECTORY_BYTES_MAX


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in ESCAPED else one for one in text)


class PartitionedSink(FileSink):
    """Hive's layout."""

    def __init__(
        self, spec: SinkSpec, store: StagingStore, journal: SinkJournal | None = None, place: str | None = None
    ) -> None:
        super().__init__(spec, store, journal, place)
        self._bound = PartitionBound(spec.name, spec.new_partitions_max)
        self._recent: tuple[str, ...] = ()
        """Keys of partitions that were written lately; none if they are too many."""

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        with self._bound.reported():
            return super().publish(frame, batch, batch_id)

    def _write(self, frame: DataFrame, token: str) -> int:
        if not self._spec.partition_by:
            return super()._write(frame, token)
        if self._recent:
            from pyspark.sql import Observation
            from pyspark.sql import functions as F

            is_recent, others = self._key(frame).isin(*self._recent), Observation()
            seen = frame.observe(others, F.count_if(~is_recent).alias("rows"))
            rows = super()._write(seen.filter(is_recent), token)
            if not others.get["rows"]:
                return rows
            self._store.remove(self._journal.data(token))
        return self._write_by_values(frame, token)

    def _write_by_values(self, frame: DataFrame, token: str) -> int:
        try:
            with computed(frame):
                found = self._bound.look(frame, self._key(frame), self._begun, is_possible, self._directory)
                wanted = frame_of(found.keys, frame)
                same = self._key(frame) == wanted[KEY]
                within = by_partition(frame.join(wanted, same, "left_semi"), self._spec.partition_by)
                rows = super()._write(within, token) if found.keys else 0
                if found.rows_beyond:
                    self._write_beyond(frame.join(wanted, same, "left_anti"), token)
                    where = f"{self.place.rstrip('/')}/{BEYOND} with all their columns"
                    self._bound.note(found.rows_beyond, where)
            recent = dict.fromkeys((*found.keys, *self._recent))
            is_calm = not found.rows_beyond and len(found.keys) <= RECENT_MAX  # else the next one is looked at at once
            self._recent = tuple(recent)[:RECENT_MAX] if is_calm else ()
            return rows + found.rows_beyond
        except SinkError:
            raise
        except Exception as error:  # Spark's and the user's, of any kind
            raise failure(error, f"sink {self.name}: looking at the values of partitionBy") from error

    def _key(self, frame: DataFrame) -> Column:
        """Name the partition of a row."""
        return key_of(frame[name] for name in self._spec.partition_by)

    def _directory(self, key: str) -> str:
        return directory_of(self._spec.partition_by, json.loads(key))

    def _begun(self, directories: list[str]) -> set[str]:
        return self._existing(list(filter(is_possible, directories)))

    def _write_beyond(self, frame: DataFrame, token: str) -> None:
        write(
            frame,
            sink=self.name,
            format=self._spec.format,
            options={**self._spec.options, **self._write_options},
            mode="error",
            path=self._store.uri(f"{self._journal.data(token)}/{STAGED_BEYOND}"),
        )

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
        return tuple(FileMove(f"data/{path}", _target(path.with_name(prefix + path.name))) for path in paths)


def _target(path: PurePosixPath) -> str:
    first, *rest = path.parts
    return str(PurePosixPath(BEYOND if first == STAGED_BEYOND else first, *rest))


COMMITTER = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""Each task moves its own files to their places once the driver lets it: one copy less. They are in a staging area."""
CANNOT = ("AccessDenied", "NoAuthWithAWS", "NoAwsCredentials", "ClassNotFoundException", "InvalidAccessKeyId")
"""What a client of S3 says that will say so again."""


class ScratchStore(PosixStore):
    """Files on their way to S3. Nothing of them is needed after a crash, so nothing is made durable."""

    def sync(self, path: str) -> None:
        pass

    def sync_below(self, path: str) -> None:
        pass


class S3FileSink(PartitionedSink):
    """`staging` is where Spark writes: a directory of this machine, or the staging areas in the bucket."""

    one_file = True

    def __init__(self, spec: SinkSpec, objects: Objects, place: S3Place, staging: StagingStore) -> None:
        journal = S3Journal(objects, place.prefix, staging, spec.name, place=str(place))
        super().__init__(spec, staging, journal, str(place))
        self._objects, self._prefix = objects, place.prefix

    def letters(self) -> LetterObjects:
        """Return the files of a dead letter."""
        return LetterObjects(self._objects, self._prefix)

    def _existing(self, directories: list[str]) -> set[str]:
        def is_begun(directory: str) -> bool:
            return any(True for _ in self._objects.list(f"{self._prefix}{directory}/", most=1))

        with object_failures(f"sink {self.name}: looking for directories"), ThreadPoolExecutor(AT_ONCE) as threads:
            return {one for one, there in zip(directories, threads.map(is_begun, directories), strict=True) if there}


class ClusterS3FileSink(S3FileSink):
    """Executors write to the bucket themselves; before the first batch they have to show that they can."""

    def __init__(self, spec: SinkSpec, objects: Objects, place: S3Place, spark: SparkSession) -> None:
        staging = S3Staging(objects, place.bucket, place.prefix, spec.name)
        super().__init__(replace(spec, options={**COMMITTER, **spec.options}), objects, place, staging)
        self._spark: SparkSession | None = spark

    def open(self) -> HighWaterMarks:
        marks = super().open()
        if self._spark is not None:
            self._try_executors(self._spark)
            self._spark = None  # once
        return marks

    def _try_executors(self, spark: SparkSession) -> None:
        token = self._journal.stage()
        data = self._journal.data(token)
        try:
            options = {**COMMITTER, **OPTIONS}
            frame = spark.range(1)
            write(frame, sink=self.name, format="json", options=options, mode="error", path=self._store.uri(data))
            if not self._store.files(data):
                raise SinkRefused(
                    f"sink {self.name}: what executors write to {self._store.uri(data)} is not there for this host: it "
                    "asks another store; mld.spark.s3.endpoint and mld.spark.conf.spark.hadoop.fs.s3a.endpoint have to "
                    "agree"
                )
        except JobFailed as error:
            text = f"{error} {error.__cause__}"
            said = f"sink {self.name}: executors cannot write to {self.place}: {sentence(text)}"
            if any(words in text for words in CANNOT):
                raise SinkRefused(
                    f"{said}; they use the AwsCredentialsProvider and the mld.spark.s3 keys of the daemon's file on "
                    "their own nodes, and mld.spark.conf.spark.hadoop.fs.s3a.* replaces them"
                ) from error
            raise SinkError(f"{said}; it is tried again") from error
        finally:
            self._journal.discard(token)
