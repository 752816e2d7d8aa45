"""What a session host tells whoever looks: a small JSON file in its private directory, for `mld check` and monitoring.

Who it is, where its UI is, and counters since its start. The file is replaced as a whole after every trigger and every
`WRITE_EVERY_S`, so a reader never sees half of it, and an old one is that of a host that hangs. No decision hangs on
it, and a full disk only makes it old. `mld/core/sparkhosts.py` reads it, and the daemon's metrics tell its figures.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mld.processors.spark.batch.outcome import BatchFigures
from mld.processors.spark.processes import started_at

log = logging.getLogger("mld.spark")

STATUS_FILE = "status.json"
VERSION = 1
WRITE_EVERY_S = 5.0

COUNTED = (
    "triggers",
    "records",
    "bytes",
    "rows",
    "commits",
    "dropped",
    "malformed",
    "poisoned",
    "stray",
    "late_rows",
    "failed_jobs",
    "retries",
    "stopped_shards",
)
"""Counted since the start of the host; docs/use/spark-operating.md says what each of them is."""


class HostStatus:
    """Counters and the file. Called on the host's loop only."""

    def __init__(
        self, directory: Path, application: str, properties_file: str, daemon_pid: int, interval_s: float = 0.0
    ) -> None:
        self._file = directory / STATUS_FILE
        self._ok = True
        self._counters = Counter(dict.fromkeys(COUNTED, 0))
        self._lag_ms: Mapping[str, int | None] = {}
        self._watermarks: Mapping[str, str] = {}
        self._aside: list[str] = []
        self._uncommitted_since: float | None = None
        self._trigger_since: float | None = None
        self._about: dict[str, object] = {
            "version": VERSION,
            "application": application,
            "propertiesFile": properties_file,
            "daemonPid": daemon_pid,
            "pid": os.getpid(),
            "pidStarted": started_at(os.getpid()),
            "startedAt": round(time.time(), 3),
            "triggerIntervalSeconds": interval_s,
        }

    def ready(self, about: Mapping[str, object]) -> None:
        """Note that the session is there: its version, application id, UI and the like."""
        self._about |= about
        self.write()

    def triggered(
        self, records: int, size: int, figures: BatchFigures, stopped: int, lag_ms: Mapping[str, int | None]
    ) -> None:
        """Count a micro-batch."""
        self._counters.update(
            triggers=1,
            records=records,
            bytes=size,
            rows=figures.rows,
            commits=figures.jobs,
            dropped=sum(figures.dropped.values()),
            malformed=figures.malformed,
            poisoned=figures.poisoned,
            stray=figures.stray,
            late_rows=figures.late_rows,
            failed_jobs=figures.failures,
            retries=max(0, figures.attempts - 1),
            stopped_shards=stopped,
        )
        self._lag_ms = dict(lag_ms)
        self._watermarks = dict(figures.watermarks)
        self._aside = sorted(figures.aside)
        self.write()

    def waits(self, uncommitted_s: float | None, trigger_s: float | None) -> None:
        """Say for how long the oldest accepted record has waited for its commit, and how old a trigger is that has not
        ended; None if there is none."""
        now = time.time()
        self._uncommitted_since = None if uncommitted_s is None else round(now - uncommitted_s, 3)
        self._trigger_since = None if trigger_s is None else round(now - trigger_s, 3)
        self.write()

    def write(self) -> None:
        """Replace the file. What goes wrong is said once."""
        said: dict[str, object] = {
            "updatedAt": round(time.time(), 3),
            "uncommittedSince": self._uncommitted_since,
            "triggerSince": self._trigger_since,
            "lagMillis": self._lag_ms,
            "counters": self._counters,
        }
        if self._watermarks:
            said["watermarks"] = self._watermarks
        if self._aside:
            said["sinksAside"] = self._aside
        text = json.dumps({**self._about, **said})
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_text(text + "\n", "utf-8")
            fresh.replace(self._file)
            self._ok = True
        except OSError as error:
            if self._ok:
                log.warning("cannot write %s: %s; `mld check` shows old figures", self._file, error.strerror)
            self._ok = False
