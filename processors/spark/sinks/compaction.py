"""Small files of one directory of a sink become a large one: a commit without records.

The entry has the names of the files that go (`LedgerEntry.removals`), and the marks of its head. Who chooses the files
is up to the caller (`commit.small_files` has the rules); any choice is right.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mld.processors.spark.commit import ledger
from mld.processors.spark.commit.admission import AdmittedSink
from mld.processors.spark.commit.journal import Journal, SinkJournal, signature
from mld.processors.spark.commit.ledger import FileMove, LedgerEntry
from mld.processors.spark.commit.small_files import ListedFile
from mld.processors.spark.commit.store import Store, as_sink_error
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.sink_port import SinkSpec
from mld.processors.spark.sinks.spark_rewrite import rewrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compaction did: the number of its entry, files before and after, and their rows."""

    number: int
    removed: int
    added: int
    rows: int


class _Superseded(Exception):
    """Another worker has compacted one of these files meanwhile."""


class CompactableFiles(AdmittedSink):
    """Files that a `Journal` publishes."""

    name: str
    _spec: SinkSpec
    _store: Store
    _journal: SinkJournal
    _write_options: Mapping[str, str]

    @abstractmethod
    def _clean(self, token: str, rows: int) -> list[str]: ...
    @abstractmethod
    def _check_layout(self, head: LedgerEntry | None) -> None: ...
    @abstractmethod
    def _moves(self, number: int, files: list[str], layout: str) -> tuple[FileMove, ...]: ...
    @abstractmethod
    def _accompany(self, entry: LedgerEntry, token: str) -> None: ...
    @abstractmethod
    def _committed(self, entry: LedgerEntry) -> None: ...

    def compact(
        self, spark: SparkSession, directory: str, choose: Callable[[list[ListedFile]], tuple[str, ...]]
    ) -> Compacted | None:
        """Replace files of one directory, of which `choose` is given those of commits, by one with the same rows.

        None if nothing is chosen, or another worker is faster. `directory` is a path below the sink. What dies or fails
        on the way leaves every record where it is, or in the new file. Needs no `open`; raises SinkError."""
        assert isinstance(self._journal, Journal)
        head = self._journal.settle()
        if head is None or not self._is_compactable(head):
            return None
        self._check_layout(head)
        names = choose(self.files_of(directory))
        if not names:
            return None
        chosen = tuple(f"{directory}/{name}" if directory else name for name in names)
        try:
            with self._journal.staged() as token:
                self._journal.mark_compaction(token)
                return self._compact(spark, directory, chosen, head, token)
        except _Superseded:
            return None

    def added_since(self, number: int) -> tuple[int, dict[str, int]]:
        """Return how many files the entries above a number have added, by directory, and the number of the newest of
        them.

        Old entries are removed, so what was added long ago may not be known."""
        assert isinstance(self._journal, Journal)
        added: Counter[str] = Counter()
        for entry in self._journal.entries_after(number):
            number = entry.number
            if self._is_compactable(entry):
                targets = (PurePosixPath(move.target) for move in entry.moves if not move.target.startswith("_"))
                added.update(str(target.parent).removeprefix(".") for target in targets)
        return number, dict(added)

    def is_being_compacted(self) -> bool:
        """Return whether another worker is at it, as far as can be told."""
        assert isinstance(self._journal, Journal)
        return self._journal.is_being_compacted()

    def directories(self) -> list[str]:
        """Return every directory that may have files of commits: the sink's own, or those of its partitions."""
        found = [""]
        try:
            for _ in self._spec.partition_by:
                found = [str(PurePosixPath(path, name)) for path in found for name in self._partitions(path)]
        except OSError as error:
            raise as_sink_error(error, f"sink {self.name}: looking for small files") from error
        return sorted(found)

    def _partitions(self, directory: str) -> list[str]:
        with suppress(NotADirectoryError):
            return [name for name in self._store.names(directory) if "=" in name and not name.startswith(".")]
        return []

    def files_of(self, directory: str) -> list[ListedFile]:
        """Return the files of commits in one directory."""
        try:
            listed = self._store.listed(directory, time.time())
        except OSError as error:
            raise as_sink_error(error, f"sink {self.name}: looking for small files") from error
        return [one for one in listed if ledger.commit_of(one.name) is not None]

    def _compact(
        self, spark: SparkSession, directory: str, chosen: tuple[str, ...], head: LedgerEntry, token: str
    ) -> Compacted | None:
        rows = self._rewrite(spark, chosen, f"{self._journal.data(token)}/{directory}".rstrip("/"), head)
        files = self._clean(token, rows)
        if not files:
            return None

        def follow(_: LedgerEntry | None) -> LedgerEntry:
            assert isinstance(self._journal, Journal)
            head = self._journal.settle()
            there = {one.name for one in self.files_of(directory)}
            if head is None or not all(PurePosixPath(path).name in there for path in chosen):
                # Every entry up to the head is finished, so whoever has taken a file away did so before; and whoever
                # does so from now on takes the number that we are about to.
                raise _Superseded
            self._check_layout(head)
            moves = self._moves(head.number + 1, files, head.layout)
            entry = ledger.compacting(head, token, moves, chosen, **signature())
            self._accompany(entry, token)
            return entry

        entry = self._journal.commit(token, follow)
        self._committed(entry)
        return Compacted(entry.number, len(chosen), len(files), rows)

    def _rewrite(self, spark: SparkSession, files: tuple[str, ...], target: str, head: LedgerEntry) -> int:
        """Write the rows of these files into the directory `target`, counted before and after; how many they are."""
        stage("rewriting")
        return rewrite(
            spark,
            [self._store.uri(path) for path in files],
            self._store.uri(target),
            sink=self.name,
            format=self._spec.format,
            options={**self._spec.options, **self._write_options},
            columns=head.columns,
        )

    def _is_compactable(self, head: LedgerEntry) -> bool:
        """Return whether the files of this layout can be put together."""
        return True
