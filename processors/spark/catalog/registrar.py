"""Tells a data catalog of a sink's columns and partitions, beside the commits.

A partition is made known before the commit that brings its first file, so that nobody has to wait for the next one if
this process dies between. For that a commit waits, for seconds at most. If the catalog does not answer, the commit goes
on and the catalog is told later, again and again: what it knows is never worth a shard. A partition that is known and
still empty is read as nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from mld.processors.spark.catalog.table import CatalogTableError, Columns

log = logging.getLogger("mld.spark")

WAIT_S = 5.0
"""How long a commit waits for its partitions to be made known, once for each."""
BACKOFF_MIN_S, BACKOFF_MAX_S = 1.0, 60.0
KNOWN_MAX = 100_000
"""Partitions remembered as known: more, and they are told again."""
PENDING_MAX = 100_000
"""Partitions that wait for a catalog out of reach; more are left to MSCK REPAIR TABLE, with a line in the log."""


class Catalog(Protocol):
    """One table of a catalog. Raises CatalogTableError where a person has to act, and anything else otherwise."""

    name: str

    def shape(self, columns: Columns) -> None:
        """Make the table, or add columns to it."""

    def add(self, directories: Sequence[str]) -> None:
        """Make partitions known; fine if they are."""


class Registrar:
    """`tell` is called on the host's working thread."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        wait_s: float = WAIT_S,
        pause: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._catalog = catalog
        self._wait_s = wait_s
        self._pause = pause
        self._columns: Columns = ()
        self._shaped: Columns = ()
        self._known: set[str] = set()
        self._pending: set[str] = set()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._failures = 0
        self._thread: threading.Thread | None = None

    def tell(self, columns: Columns, directories: Sequence[str]) -> bool:
        """Return what a commit is about to bring. Whether the catalog knows it now; never raises."""
        with self._changed:
            fresh = set(directories) - self._known
            if tuple(columns) == tuple(self._shaped) and not fresh:
                return True
            self._columns = tuple(columns) or self._columns
            self._pending |= fresh
            if len(self._pending) > PENDING_MAX:
                log.error(
                    "%s: %d partitions wait to be made known, and are forgotten: run MSCK REPAIR TABLE %s later",
                    self._catalog.name,
                    len(self._pending),
                    self._catalog.name,
                )
                self._pending.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name=f"catalog {self._catalog.name}")
                self._thread.start()
            self._changed.notify_all()
            # While it fails nobody waits for it: it would hold every commit.
            return self._changed.wait_for(self._is_told, 0.0 if self._failures else self._wait_s)

    def stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()

    def _is_told(self) -> bool:
        return not self._pending and self._shaped == self._columns

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or not self._is_told())
                columns, pending = self._columns, sorted(self._pending)
            if self._stopping.is_set():
                return
            try:
                if columns != self._shaped:
                    self._catalog.shape(columns)
                if pending:
                    self._catalog.add(pending)
            except Exception as error:
                self._failed(error)
                continue
            self._succeeded(columns, pending)

    def _succeeded(self, columns: Columns, told: Sequence[str]) -> None:
        with self._changed:
            self._shaped = columns
            self._pending -= set(told)
            if len(self._known) > KNOWN_MAX:
                self._known.clear()
            self._known |= set(told)
            if self._failures:
                log.info("%s is told again of columns and partitions", self._catalog.name)
            self._failures = 0
            self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self._failures += 1
            pause_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures - 1, 16))
            self._changed.notify_all()
        said = str(error) if isinstance(error, CatalogTableError) else f"{type(error).__name__}: {error}"
        log.error(
            "the table %s cannot be told of columns and partitions: %s. Nothing is lost: records get into the sink. "
            "It is tried again in %g s",
            self._catalog.name,
            said,
            pause_s,
        )
        self._pause(self._stopping, pause_s)
