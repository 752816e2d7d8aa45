"""Compacts sinks of files while the host runs: one directory at a time, on a thread of its own, most of the time idle.

It is another writer of its sinks, with objects of its own, so the micro-batches never wait for it; a batch that commits
meanwhile wins or loses a number, as beside any other worker. A round begins right after a trigger, when the next one is
farthest (in a backlog it may be in flight already), takes one task, and is followed by a pause of several times its
length. Nothing of it is worth a shard: what fails is said, left as it was, and tried again later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mld.processors.spark.commit import small_files
from mld.processors.spark.commit.small_files import Directories, ListedFile
from mld.processors.spark.sink_port import SinkError, SinkRefused
from mld.processors.spark.sinks.compaction import Compacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("mld.spark")

REST = 4.0
"""The pause after a round, as a multiple of its length: the share of one core is a fifth at most."""
REST_MIN_S = 1.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 30.0, 3600.0
"""Between attempts at a sink that fails."""


class Compactable(Protocol):
    """What is needed of a sink: `FileSink`, or its twin in memory."""

    name: str

    def added_since(self, number: int) -> tuple[int, dict[str, int]]: ...
    def is_being_compacted(self) -> bool: ...
    def compact(
        self, spark: SparkSession, directory: str, choose: Callable[[list[ListedFile]], tuple[str, ...]]
    ) -> Compacted | None: ...


@dataclass
class _Watch:
    sink: Compactable
    number: int = 0
    known: Directories = field(default_factory=dict)
    left_alone: set[str] = field(default_factory=set)
    """Directories with files that cannot be put together, until the host starts again."""
    failures: int = 0
    not_before: float = 0.0


class Compactor:
    """`triggered` and `stop` are called on any thread."""

    def __init__(
        self,
        sinks: Sequence[Compactable],
        spark: SparkSession,
        files_min: int,
        target_bytes: int = small_files.TARGET_BYTES,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watches = [_Watch(sink) for sink in sinks]
        self._spark = spark
        self._files_min = files_min
        self._target_bytes = target_bytes
        self._clock = clock
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="compaction")

    def start(self) -> None:
        self._thread.start()

    def triggered(self) -> None:
        """Note that a micro-batch has ended, and the next one is not due yet."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no other round. One that is under way ends with the session, and whoever comes next finishes it."""
        self._stopping.set()
        self._woken.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(self.wait_s())
            self._woken.clear()
            if self._stopping.is_set():
                return
            started = self._clock()
            self.round()
            self._stopping.wait(max(REST_MIN_S, REST * (self._clock() - started)))

    def wait_s(self) -> float | None:
        """Return how long to wait for a trigger before a look at directories that have become quiet; None: for ever."""
        now = self._clock()
        waits = [
            max(quiet_s, watch.not_before - now)
            for watch in self._watches
            if (quiet_s := small_files.next_quiet_s(watch.known, now)) is not None
        ]
        return min(waits, default=None)

    def round(self) -> Compacted | None:
        """Look what was added, and compact one directory if one is due."""
        for watch in self._watches:
            if self._clock() < watch.not_before:
                continue
            try:
                done = self._one(watch)
                watch.failures = 0
            except Exception as error:
                self._failed(watch, error)
                continue
            if done is not None:
                self._watches.remove(watch)
                self._watches.append(watch)  # the others have their turn first
                return done
        return None

    def _one(self, watch: _Watch) -> Compacted | None:
        now = self._clock()
        watch.number, added = watch.sink.added_since(watch.number)
        added = {path: count for path, count in added.items() if path not in watch.left_alone}
        watch.known = small_files.with_added(watch.known, added, now)
        while (path := small_files.due(watch.known, now)) is not None:
            if watch.sink.is_being_compacted():
                return None
            done, missing = self._compact(watch, path)
            if done is not None:
                return done
            watch.known = small_files.looked(watch.known, path, missing, now)
        return None

    def _compact(self, watch: _Watch, path: str) -> tuple[Compacted | None, int]:
        """Return what was done, and how many more files make the directory worth another look."""
        missing = self._files_min

        def choose(files: list[ListedFile]) -> tuple[str, ...]:
            nonlocal missing
            missing = small_files.missing(files, self._files_min, self._target_bytes)
            return small_files.to_compact(files, self._files_min, self._target_bytes)

        started = self._clock()
        try:
            done = watch.sink.compact(self._spark, path, choose)
        except SinkRefused as error:
            log.error("%s; no more compactions there until the host starts again", error)
            watch.left_alone.add(path)
            return None, self._files_min
        if done is not None:
            said = "%s: %d files of %s became %d, rows=%d commit=%d total_ms=%d"
            took_ms = (self._clock() - started) * 1000
            where = path or "its directory"
            log.info(said, watch.sink.name, done.removed, where, done.added, done.rows, done.number, took_ms)
        return done, missing

    def _failed(self, watch: _Watch, error: Exception) -> None:
        if self._stopping.is_set():
            return
        watch.failures += 1
        pause_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(watch.failures - 1, 16))
        watch.not_before = self._clock() + pause_s
        said = str(error) if isinstance(error, SinkError) else f"{type(error).__name__}: {error}"
        log.warning("%s: small files stay as they are, every record is there: %s", watch.sink.name, said)
