"""Files in a directory of a POSIX file system, exactly once: flat, or partitioned as Hive does it.

Flat: the files of a commit stand in the one directory, as `c<number>-<index>.<suffix>`. A commit of one file appears by
one rename, so a reader sees the whole of it or nothing. Several files are renamed one by one: a reader may see a part
of the newest commit meanwhile, and no record twice. Beside them, in `_mld_copies`, are copies of the newest entries of
the ledger, each put there before the first file of its commit: whoever loses `_mld` has not lost the marks.

Flat in directories, as sinks were until version 0.2: each commit is a directory, `mld_commit=<number>`, with its data
files and a copy of its ledger entry, and appears by one rename. Readers that know partitions show the number as a
column `mld_commit`. Spark reads either the directories or the files beside them, never both, so a sink that has begun
in this layout (`LedgerEntry.layout` says so) goes on in it.

Partitioned (`partitioned_files`): the files of a commit are renamed one by one into `<column>=<value>/` directories,
and every name begins with the number of its commit. A reader may see a part of the newest commit meanwhile, and no
record twice.

`commit.journal` says why a commit happens once, whatever dies. Spark writes into a private staging area, so what its
own committer leaves there (`_temporary`, `_SUCCESS`, late attempts of tasks) never gets into the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, cast

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import AdmittedSink, admission_of
from mld.processors.spark.commit.journal import LEDGER, Journal, SinkJournal, signature
from mld.processors.spark.commit.ledger import Columns, ColumnsClash, FileMove, LedgerEntry
from mld.processors.spark.commit.store import StagingStore, Store, as_sink_error
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.high_water_marks import HighWaterMarks, ShardSpans
from mld.processors.spark.sink_port import Published, SinkRefused, SinkSpec
from mld.processors.spark.sinks.letter_files import LetterFiles, StoredLetters
from mld.processors.spark.spark_errors import failure
from mld.properties.spark import TAKEN_BY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


COMMIT = "mld_commit"
COPY = "_ledger.json"
COPIES = "_mld_copies"
"""Outside of `_mld`, so that it outlives it; readers skip what begins with an underscore."""
DRAFT_OF_COPY = "copy.json"
COPIES_KEPT, COPIES_SWEPT_FROM = 2, 8
IN_FILES = "{} in files"
"""Layout of a flat sink by its format; the name of the format alone is that of a sink in directories."""
BY_PLACE = frozenset(("csv",))
"""Formats whose columns have no names once they are written."""
DEFAULTS = {"parquet": {"parquet.dictionary.page.size": str(128 * 1024)}}
"""Options that the user's win over. A batch makes small files, in which the usual dictionary of 1 MB would hold nearly
all values of a column that has no repetitions; building it in vain takes a fifth of a batch's CPU."""
OPTIONS = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


class FileSink(AdmittedSink):
    """What both layouts share: stage, commit, and the rules of columns. Exactly once."""

    exactly_once = True
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
        return self._admission.marks(self._journal.claim(head, self._admission))

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
                entry = self._admission.following(
                    head,
                    batch,
                    token,
                    layout=self._layout_after(head),
                    columns=self._widened(head, columns),
                    moves=self._moves(head.number + 1 if head else 1, files, self._layout_after(head)),
                    batch_id=batch_id,
                    **signature(),
                    rows=rows,
                )
                self._accompany(entry, token)
                return entry

            entry = self._journal.commit(token, follow)
            self._committed(entry)
            return Published(self._admission.marks(entry), entry.number, rows)

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
        if head and head.layout != self._layout_after(head):
            raise SinkRefused(
                f"sink {self.name}: {self.place} holds {head.layout}, mld.spark.sink.{self.name}.* asks for "
                f"{self._layout}; use a new directory"
            )

    def _layout_after(self, head: LedgerEntry | None) -> str:
        """Return the layout of the commit that follows a head."""
        return self._layout

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

    def _moves(self, number: int, files: list[str], layout: str) -> tuple[FileMove, ...]:
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
    """All files in one directory; or one directory per commit, where the sink has begun so."""

    def __init__(self, spec: SinkSpec, store: Store) -> None:
        super().__init__(spec, store)
        self._in_directories, self._layout = self._layout, IN_FILES.format(self._layout)

    def letters(self) -> LetterFiles:
        """Return the files of a dead letter."""
        return StoredLetters(self._store)

    def _layout_after(self, head: LedgerEntry | None) -> str:
        return self._in_directories if head and head.layout == self._in_directories else self._layout

    def _check(self, head: LedgerEntry | None, batch: ShardSpans, columns: Columns) -> None:
        super()._check(head, batch, columns)
        if self._layout_after(head) == self._in_directories and any(name.lower() == COMMIT for name, _ in columns):
            raise SinkRefused(f"sink {self.name}: the column {COMMIT} is the sink's own; rename it in the pipeline")

    def _check_columns(self, columns: Columns) -> None:
        pass

    def _moves(self, number: int, files: list[str], layout: str) -> tuple[FileMove, ...]:
        if not files:
            return ()
        digits = f"{number:0{ledger.NUMBER_DIGITS}d}"
        if layout == self._in_directories:
            return (FileMove("data", f"{COMMIT}={digits}"),)
        copy = FileMove(DRAFT_OF_COPY, f"{COPIES}/{ledger.entry_name(number)}")
        targets = (f"c{digits}-{index:05d}{_suffixes(name)}" for index, name in enumerate(files))
        return (copy, *(FileMove(f"data/{name}", target) for name, target in zip(files, targets, strict=True)))

    def _accompany(self, entry: LedgerEntry, token: str) -> None:
        if entry.moves:
            data = self._journal.data(token)
            inside = entry.layout == self._in_directories
            path = f"{data}/{COPY}" if inside else str(PurePosixPath(data).with_name(DRAFT_OF_COPY))
            self._store.write(path, ledger.encode(entry))

    def _committed(self, entry: LedgerEntry) -> None:
        """Remove old copies. Failing to clean is no failure."""
        if not entry.moves or entry.layout == self._in_directories:
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
            if commits := [name for name in names if name.startswith(f"{COMMIT}=")]:
                return self._restored(f"{max(commits)}/{COPY}")
            newest = max((number for name in names if (number := ledger.commit_of(name)) is not None), default=0)
            # A copy without its files was never seen by a reader; its number is given again, to another commit.
            unseen = [number for number in copies if number > newest]
            for number in unseen:
                self._check_removals(f"{COPIES}/{ledger.entry_name(number)}", names)
            self._remove_copies(unseen)
            return self._restored(f"{COPIES}/{ledger.entry_name(newest)}") if newest else None
        except OSError as error:
            raise as_sink_error(error, f"sink {self.name}: looking for its lost ledger") from error

    def _check_removals(self, copy: str, names: list[str]) -> None:
        """Check that a compaction of 0.2.0-dev whose file has not come has taken none away."""
        with suppress(ValueError):  # what cannot be read was no compaction's
            gone = set(ledger.decode(self._store.read(copy)).removals) - set(names)
            if gone:
                raise SinkRefused(
                    f"sink {self.name}: {self._store.uri('')} has no ledger, and {len(gone)} files are missing that "
                    f"the compaction of {copy} was replacing, {min(gone)} among them; restore _mld, which has them"
                )

    def _restored(self, copy: str) -> LedgerEntry:
        try:
            data = self._store.read(copy)
            entry = ledger.decode(data)
        except (OSError, ValueError) as error:
            raise SinkRefused(
                f"sink {self.name}: {self._store.uri('')} holds commits, but no ledger, and {copy} cannot be read "
                f"({error}); restore _mld, or use a new directory"
            ) from error
        if entry.layout != self._in_directories:
            missing = [move.target for move in entry.moves if not self._store.exists(move.target)]
            if missing:
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
