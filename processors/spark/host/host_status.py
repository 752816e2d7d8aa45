"""The status of a session host: a small JSON file in its private directory, for `mld check` and monitoring.

It has the host's process, its UI, and counters since its start. The file is replaced as a whole after every trigger
and every few seconds, so a reader never sees half of it, and an old file is that of a host that hangs. No decision
depends on it, and a full disk only makes it old. `mld/core/sparkhosts.py` reads it, and the daemon's metrics have its
figures.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from mld.processors.spark import run_directory
from mld.processors.spark.batch.micro_batch import MicroBatch
from mld.processors.spark.batch.outcome import BatchOutcome

log = logging.getLogger("mld.spark")
STATUS_FILE = "status.json"
VERSION = 1


class HostStatus:
    """Counters and the file. Called on the host's loop only."""

    def __init__(
        self, directory: Path, application: str, properties_file: str, daemon_pid: int, interval_s: float = 0.0
    ) -> None:
        self._file = directory / STATUS_FILE
        self._ok = True
        self._counters = Counter(dict.fromkeys(("triggers", *counted(MicroBatch((), ()), BatchOutcome())), 0))
        """Since the start of the host; docs/use/spark-operating.md says what each of them is."""
        self._told: dict[str, object] = {
            "version": VERSION,
            "application": application,
            "propertiesFile": properties_file,
            "daemonPid": daemon_pid,
            "pid": os.getpid(),
            "pidStarted": run_directory.started_at(os.getpid()),
            "startedAt": round(time.time(), 3),
            "triggerIntervalSeconds": interval_s,
            "uncommittedSince": None,
            "triggerSince": None,
            "lagMillis": {},
        }

    def ready(self, about: Mapping[str, object]) -> None:
        """Note that the session is there: its version, application id, UI and the like."""
        self._told |= about
        self.write()

    def triggered(self, counts: Mapping[str, int], lag_ms: Mapping[str, int | None]) -> None:
        """Count a micro-batch."""
        self._counters.update(counts, triggers=1)
        self._told["lagMillis"] = lag_ms
        self.write()

    def waits(self, uncommitted_s: float | None, trigger_s: float | None) -> None:
        """Say for how long the oldest accepted record has waited for its commit, and how old a trigger is that has not
        ended; None if there is none."""
        for name, age_s in (("uncommittedSince", uncommitted_s), ("triggerSince", trigger_s)):
            self._told[name] = None if age_s is None else round(time.time() - age_s, 3)
        self.write()

    def write(self) -> None:
        """Replace the file. What goes wrong is said once."""
        text = json.dumps({**self._told, "updatedAt": round(time.time(), 3), "counters": self._counters})
        fresh = self._file.with_suffix(".new")
        try:
            fresh.write_text(text + "\n", "utf-8")
            fresh.replace(self._file)
            self._ok = True
        except OSError as error:
            if self._ok:
                log.warning("cannot write %s: %s; `mld check` shows old figures", self._file, error.strerror)
            self._ok = False


def counted(batch: MicroBatch, outcome: BatchOutcome) -> dict[str, int]:
    """Return what a micro-batch adds to the counters of its host."""
    figures = outcome.figures
    return {
        "records": batch.records,
        "bytes": batch.size,
        "rows": figures.rows,
        "commits": figures.jobs,
        "dropped": figures.dropped,
        "malformed": figures.malformed,
        "poisoned": figures.poisoned,
        "stray": figures.stray,
        "failed_jobs": figures.failures,
        "retries": max(0, figures.attempts - 1),
        "stopped_shards": len(outcome.failed),
    }
