"""The streaming queries over the inbox: one for each sink, each with a checkpoint of Spark's own.

Spark's checkpoint makes a query's batches repeatable: whatever dies, batch n has the same records, state and watermark
again. What a batch gives is published by the sink itself, with the number of the batch as its mark in the sink's
ledger; a batch that is repeated finds its mark there and is skipped. So the sinks keep the guarantees and the layouts
that they have without streaming. The mark bears the id of the query, which changes if its checkpoint is lost.

What the progress of a streaming query says, as Spark reports it in JSON after each of its batches.

Pure: values in, values out. A row is late if it comes to an operator with state after the watermark has passed it;
Spark leaves it out without a word. Rows are counted where they reach the operator: a window adds up the records of a
task before, so one row there may be several records of one window and key.

Spark's own log of the inbox files that a query has taken, `sources/<n>` of its checkpoint: read, and kept short.

Spark writes one file per batch, gathers every tenth time all entries so far into `<n>.compact`, and never lets go of
one. Without care it would grow for ever. So entries of files that are gone from the inbox are dropped from the newest
`.compact`, which Spark reads again only to write the next. The log also tells, independent of everything else, whether
a query has taken a file: no record is acknowledged on the word of one source alone.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mld.processors.spark.batch.attempts import pause_s, until_published
from mld.processors.spark.commit.store import stage
from mld.processors.spark.high_water_marks import QUERY, RecordPosition, ShardSpan, StreamShard, gaps
from mld.processors.spark.pipeline import Batch, Pipeline, PipelineError, PipelineFailed
from mld.processors.spark.session import handover
from mld.processors.spark.session.decoding import StrayNames
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.sink_port import JobFailed, Sink, SinkError, SinkRefused, failure, first_line
from mld.processors.spark.streaming.inbox import SUFFIX, number_of
from mld.properties.spark import OnGap

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


VERSION = b"v1"
COMPACT = ".compact"
KEPT = 100
"""Entries of files that are gone; Spark needs those of its last batches, of which it keeps 100."""
TRIMMED_FROM = 10 * KEPT


class LogUnknown(Exception):
    """The log is not written as this program knows it; one sentence."""


def entries(data: bytes, place: str) -> list[tuple[int, bytes]]:
    """Number and line of every entry that is an inbox file."""
    version, _, rest = data.partition(b"\n")
    if version != VERSION:
        raise LogUnknown(f"{place} is of version {version[:20]!r}, this program knows {VERSION!r}")
    found = []
    for line in rest.splitlines():
        try:
            number = number_of(json.loads(line)["path"].rpartition("/")[2])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogUnknown(f"{place} has an entry that is none: {line[:80]!r}") from error
        if number is not None:
            found.append((number, line))
    return found


def newest(names: Iterable[str]) -> tuple[int | None, list[int]]:
    """Return the number of the newest `.compact`, and those of the batches after it."""
    plain: list[int] = []
    compact: list[int] = []
    for name in names:
        digits = name.removesuffix(COMPACT)
        if digits.isascii() and digits.isdigit():
            (compact if name.endswith(COMPACT) else plain).append(int(digits))
    last = max(compact, default=None)
    return last, sorted(number for number in plain if last is None or number > last)


def numbers(log: Path) -> set[int]:
    """Return inbox files that a query has taken, by one of its logs; of those that are gone only the last are known.

    Raises LogUnknown."""
    last, plain = newest(path.name for path in log.iterdir())
    files = [*([f"{last}{COMPACT}"] if last is not None else []), *map(str, plain)]
    found: set[int] = set()
    for name in files:
        with suppress(FileNotFoundError):  # gathered meanwhile: it is read again with the next acknowledgement
            found.update(number for number, _ in entries((log / name).read_bytes(), str(log / name)))
    return found


def trim(log: Path, done: int) -> bool:
    """Drop entries of files up to `done`, which are gone, but the last; whether there was enough to be worth it."""
    last, _ = newest(path.name for path in log.iterdir())
    if last is None:
        return False
    path = log / f"{last}{COMPACT}"
    data = path.read_bytes()
    if data.count(b"\n") < TRIMMED_FROM:
        return False
    kept = [line for number, line in entries(data, str(path)) if number > done - KEPT]
    draft = log / f".{path.name}.draft"
    draft.write_bytes(b"\n".join((VERSION, *kept)))
    # First the checksum: a file without one is not checked, one with that of another file is refused.
    (log / f".{path.name}.crc").unlink(missing_ok=True)
    draft.replace(path)
    return True


def logs(checkpoint: Path) -> list[Path]:
    """Return those of all sources of a query; a pipeline that joins `records` with itself has several."""
    try:
        return sorted(path for path in (checkpoint / "sources").iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def missing(checkpoint: Path, wanted: Iterable[int]) -> set[int]:
    """Return those of the inbox files that a source of the query has not taken. Raises LogUnknown."""
    wanted = set(wanted)
    taken = [found for log in logs(checkpoint) if (found := numbers(log))]
    if not taken:
        return wanted
    return {number for number in wanted if any(number not in found for found in taken)}


Progress = Mapping[str, Any]


def late_rows(progress: Progress) -> int:
    """Return rows that were left out because they came later than the watermark."""
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in progress.get("stateOperators") or ())


def observed(progress: Progress, name: str) -> Mapping[str, Any]:
    """Return what was observed under this name; empty if nothing was."""
    return (progress.get("observedMetrics") or {}).get(name) or {}


def watermark(progress: Progress) -> str | None:
    """Return the watermark after the batch, in ISO 8601; None if the query has none."""
    found = (progress.get("eventTime") or {}).get("watermark")
    return None if found is None else str(found)


log = logging.getLogger("mld.spark")

QUERIES, CLAIM = "queries", "worker"
CLAIM_WAIT_S, CLAIM_POLL_S = 30.0, 0.2
"""The JVM of a host that was killed ends a moment after it."""
_CLAIMED: list[Any] = []
"""Channels that this process keeps to its end: to close any one of a file, as the JVM does if nobody knows it, gives up
the lock on it."""
CONF = {
    "spark.sql.streaming.pollingDelay": "250ms",  # how often a query without work looks into the inbox; default 10 ms
    # Of all batches since the last look; only what is new is asked for.
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    # State outside the heap, written as what has changed. What a checkpoint was begun with stays in force: Spark keeps
    # the provider with the offsets of a query.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
}
PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FILE_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""The default one starts some thirty processes for each batch to look for links, without Hadoop's native library."""
FILES_REMEMBERED = "100000s"
"""How many taken files Spark remembers in its heap: as seconds, because the time of a file is its number."""


def configuration(spark: SparkSession) -> dict[str, str]:
    """Return what the queries of a session are run with, unless the user says otherwise."""
    found = dict(CONF)
    java = spark._jvm
    assert java is not None
    with suppress(Exception):  # another version of Spark has it elsewhere
        java.java.lang.Class.forName(FILE_MANAGER)
        found[FILE_MANAGER_KEY] = FILE_MANAGER
    try:
        java.org.rocksdb.RocksDB.loadLibrary()
        found[PROVIDER_KEY] = ROCKSDB
    except Exception as error:  # a platform without its native library, or a temporary directory without programs
        log.warning("new queries keep their state in the heap: RocksDB cannot be loaded (%s)", first_line(error))
    return found


class Queries(Protocol):
    """What the engine runs; `SparkQueries`, or its twin in memory. Raises SinkError and its kinds."""

    def claim(self) -> None:
        """Take the checkpoint for this session, until its JVM ends."""

    def newest(self) -> int:
        """Return the number of the last file that a query has taken, also one before; 0 if there is none."""

    def start(self) -> None:
        """Start all that do not run. Raises PipelineError, too."""

    def process(self) -> None:
        """Wait until every query has committed what stood in the inbox at the time of the call."""

    def untaken(self, numbers: list[int]) -> set[int]:
        """Return which of these files some query has not taken."""

    def trim(self, done: int) -> None:
        """Forget files up to this number, which are gone."""

    def late_rows(self) -> int:
        """Return how many rows came later than the watermark, in all queries since they were made; on any thread."""

    def watermarks(self) -> Mapping[str, str]:
        """Return the watermarks of queries that have one; on any thread."""

    def stop(self) -> None:
        """Wait until none runs; on any thread."""


class SparkQueries:
    """Queries of one session."""

    def __init__(
        self,
        spark: SparkSession,
        settings: SparkSettings,
        pipeline: Pipeline,
        sinks: Mapping[str, Sink],
        dead: Sink | None,
        root: Path,
        inbox: Path,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._pipeline = pipeline
        self._sinks = dict(sinks)
        self._dead = dead
        self._root = root
        self._inbox = inbox
        self._names: tuple[str, ...] = ("none yet",)
        self._running: dict[str, StreamingQuery] = {}
        self._raised: dict[str, SinkError] = {}
        self._counted_to: dict[str, int] = {}
        self._late_rows = 0
        self._stray_names = StrayNames()
        self._watermarks: dict[str, str] = {}
        self._stopping = threading.Event()
        self._ending = threading.Lock()

    def claim(self) -> None:
        """Have the JVM lock a file of the checkpoint: whoever runs queries has the lock, and the kernel drops it when
        they end."""
        java = self._spark._jvm
        assert java is not None
        deadline = time.monotonic() + CLAIM_WAIT_S
        try:
            channel = java.java.io.RandomAccessFile(str(self._root / CLAIM), "rw").getChannel()
            while (lock := channel.tryLock()) is None and time.monotonic() < deadline:
                time.sleep(CLAIM_POLL_S)
        except Exception as error:
            if "OverlappingFileLockException" in str(error):
                _CLAIMED.append(channel)  # this JVM has it
                return
            raise failure(error, f"locking mld.spark.checkpoint = {self._root}") from error
        if lock is None:
            raise SinkError(
                f"mld.spark.checkpoint = {self._root} is in use by another worker, and a stateful pipeline has one: "
                "stop the other, and start one process (mld.processes = 1)"
            )
        _CLAIMED.append(channel)

    def newest(self) -> int:
        try:
            logs = (self._root / QUERIES).glob("*/sources/*")
            return max((number for log in logs for number in numbers(log)), default=0)
        except (LogUnknown, OSError) as error:
            raise SinkRefused(f"{error}; use the PySpark that this version names") from error

    def start(self) -> None:
        if self._running and all(query.isActive for query in self._running.values()):
            return
        self.stop()
        self._stopping.clear()
        self._raised.clear()
        self._counted_to.clear()
        for key, value in configuration(self._spark).items():
            if key not in self._settings.conf:
                self._spark.conf.set(key, value)
        frames = self.frames()
        self._names = tuple(frames)
        for name, frame in frames.items():
            try:
                self._running[name] = self._start(name, frame)
            except Exception as error:
                raise failure(error, f"starting the query of sink {name}") from error

    def frames(self) -> dict[str, DataFrame]:
        """Return the streaming frame of every sink. Raises PipelineError."""
        raw = (
            self._spark.readStream.schema(handover.RAW)
            .options(maxFileAge=FILES_REMEMBERED, pathGlobFilter=f"*{SUFFIX}")
            .parquet(f"file://{self._inbox}")
        )
        handed = handover.handed(
            raw,
            self._settings.format,
            self._settings.schema,
            divert=self._dead is not None,
            streaming=True,
            letter=self._settings.writer or handover.NOBODY,
            rescued=self._settings.rescued_column,
        )
        try:
            returned = self._pipeline.frames(handed.records, Batch("streaming"))
        except PipelineFailed as error:
            raise PipelineError(f"{error}; correct the pipeline") from error
        frames: dict[str, DataFrame] = {}
        for name in self._sinks:
            frame = returned[name]
            if frame is None or not frame.isStreaming:
                what = "no frame" if frame is None else "a frame that is not streaming"
                raise PipelineError(
                    f"the pipeline returned {what} for sink {name}; with mld.spark.mode = streaming every sink needs a "
                    "DataFrame that is made of `records`"
                )
            frames[name] = frame
        if self._dead is not None and handed.malformed is not None:
            frames[self._dead.name] = handed.malformed()
        return frames

    def process(self) -> None:
        running = dict(self._running)
        if set(running) != set(self._names):
            raise JobFailed("the streaming queries were stopped")
        try:
            for name, query in running.items():
                try:
                    query.processAllAvailable()
                    active = query.isActive
                except Exception as error:
                    raise self._failure(query, name, error) from error
                if not active:
                    raise self._failure(query, name, None)
        finally:
            self._look(running)

    def late_rows(self) -> int:
        return self._late_rows

    def watermarks(self) -> Mapping[str, str]:
        return dict(self._watermarks)

    def _look(self, running: Mapping[str, StreamingQuery]) -> None:
        """Count what the queries have reported since the last look, and say what a person should know."""
        for place, (name, query) in enumerate(running.items()):
            try:
                new = self._new_progress(name, query)
            except Exception as error:  # the query or its JVM is gone, which others say
                log.debug("no progress of query %s: %s", name, error)
                continue
            for one in new:
                self._watermarks |= {name: mark} if (mark := watermark(one)) else {}
            if late := sum(map(late_rows, new)):
                self._late_rows += late
                log.warning(
                    "sink %s: %d rows came later than the watermark, which is %s now, and are left out: give "
                    "withWatermark more time (docs/use/spark-pipeline.md, Late rows)",
                    name,
                    late,
                    self._watermarks.get(name, "unknown"),
                )
            if place:
                continue  # every query sees all records; the first one tells
            seen = [observed(one, handover.OBSERVED) for one in new]
            if self._settings.rescued_column is None:
                for one in seen:
                    if news := self._stray_names.news(int(one.get("stray") or 0), one.get("stray_names")):
                        log.warning("%s", news)
            if self._dead is None and (malformed := sum(int(one.get("malformed") or 0) for one in seen)):
                log.warning("%d records cannot be decoded; their payload is null (key mld.spark.deadLetter)", malformed)

    def _new_progress(self, name: str, query: StreamingQuery) -> list[Progress]:
        counted_to = self._counted_to.get(name, -1)
        reports = query._jsq.recentProgress()
        found: list[Progress] = []
        for at in reversed(range(len(reports))):
            report = reports[at]
            if report.batchId() <= counted_to:
                break
            found.append(json.loads(report.json()))
        found.reverse()
        if found:
            self._counted_to[name] = int(found[-1]["batchId"])
        return found

    def untaken(self, numbers: list[int]) -> set[int]:
        try:
            found = [missing(self._checkpoint(name), numbers) for name in self._names]
        except (LogUnknown, OSError) as error:
            raise SinkRefused(f"{error}; nothing is acknowledged: use the PySpark that this version names") from error
        return set().union(*found)

    def trim(self, done: int) -> None:
        with suppress(OSError, LogUnknown):
            for name in self._names:
                for source in logs(self._checkpoint(name)):
                    trim(source, done)

    def stop(self) -> None:
        self._stopping.set()
        with self._ending:  # whoever comes second returns when they have stopped too: then the lead is given up
            running, self._running = self._running, {}
            for query in running.values():
                with suppress(Exception):
                    query.stop()

    def _start(self, name: str, frame: DataFrame) -> StreamingQuery:
        return (
            frame.writeStream.queryName(name)
            .outputMode(self._settings.output_modes.get(name, "append"))
            .option("checkpointLocation", f"file://{self._checkpoint(name)}")
            .foreachBatch(self._writer(name))
            .start()
        )

    def _checkpoint(self, name: str) -> Path:
        return self._root / QUERIES / name

    def _failure(self, query: StreamingQuery, name: str, error: Exception | None) -> SinkError:
        raised = self._raised.pop(name, None)
        if raised is not None:
            return raised
        if error is None:
            with suppress(Exception):
                error = query.exception()
        if error is None:
            return JobFailed(f"the query of sink {name} was stopped by somebody else")
        return failure(error, f"the query of sink {name}")

    # --- batches of a query, on a thread of the JVM ------------------------------------------------------------------

    def _writer(self, name: str) -> Callable[[DataFrame, int], None]:
        sink = self._dead if self._dead is not None and name == self._dead.name else self._sinks[name]
        assert sink is not None

        def write(frame: DataFrame, number: int) -> None:
            stage("batch")
            try:
                # Spark writes the query's id into the checkpoint before the first batch.
                query = str(json.loads((self._checkpoint(name) / "metadata").read_bytes())["id"])
                self._publish(sink, frame, number, query)
            except SinkError as error:
                self._raised[name] = error
                raise
            stage("published")

        return write

    def _publish(self, sink: Sink, frame: DataFrame, number: int, query: str) -> None:
        """Publish a batch into its sink, unless it is there; a sink that cannot now is waited for."""
        shard, upto = StreamShard(QUERY, query), RecordPosition(number)

        def attempt() -> None:
            mark = sink.open().get(shard)
            before = {shard: RecordPosition(number - 1)} if number else {}
            if gaps(before, {} if mark is None else {shard: mark}) and self._settings.on_gap is not OnGap.ACCEPT:
                raise SinkRefused(
                    f"sink {sink.name} holds batch {mark} of its query and lacks those up to {number}: it has gone "
                    "back in time. Restore a newer copy of it, or start over with another mld.spark.checkpoint; to "
                    "leave the gap: start once with -D mld.spark.onGap=accept"
                )
            if mark is None or mark < upto:
                batch_id = f"{self._settings.application}-query-{number}"
                rows = sink.publish(frame, {shard: ShardSpan(mark, upto)}, batch_id).rows
                if sink is self._dead and rows:
                    where = self._settings.dead_letter
                    log.warning("%d records cannot be decoded and are in the dead letter %s", rows, where)

        def wait(error: SinkError, waits: int) -> None:
            if isinstance(error, JobFailed):
                raise error
            log.error("%s; trying again", error)
            if self._stopping.wait(pause_s(self._settings.retry_backoff_s, waits)):
                raise error

        until_published(attempt, wait)
