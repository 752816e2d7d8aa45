"""The status of a session host: a small JSON file in its private directory, for `mld check` and monitoring.

The file has the host's process, the address of its UI, and counters since its start. The whole file is replaced after
every micro-batch and every few seconds. So a reader never sees half of it, and if it is old, its host hangs. No
decision depends on it; if the disk is full, it just stays old. `mld/core/sparkhosts.py` reads it for the daemon's
metrics.
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
    """Keeps the counters, and writes the file. Called on the host's event loop only."""

    def __init__(
        self, directory: Path, application: str, properties_file: str, daemon_pid: int, interval_s: float = 0.0
    ) -> None:
        self._file = directory / STATUS_FILE
        self._ok = True
        names = ("triggers", *counted(MicroBatch((), ()), BatchOutcome()))
        self._counters = Counter(dict.fromkeys(names, 0))
        """Counters since the start of the host. docs/use/spark-operating.md describes each of them."""
        self._values: dict[str, object] = {
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
        """Add facts about the session that has started: version, application id, UI and the like."""
        self._values |= about
        self.write()

    def triggered(self, counts: Mapping[str, int], lag_ms: Mapping[str, int | None]) -> None:
        """Count a micro-batch."""
        self._counters.update(counts, triggers=1)
        self._values["lagMillis"] = lag_ms
        self.write()

    def waits(self, uncommitted_s: float | None, trigger_s: float | None) -> None:
        """Write since when the oldest uncommitted record has waited, and since when the present micro-batch runs.

        Both are given in seconds until now; None if there is no such record, or no micro-batch is running."""
        for name, age_s in (("uncommittedSince", uncommitted_s), ("triggerSince", trigger_s)):
            self._values[name] = None if age_s is None else round(time.time() - age_s, 3)
        self.write()

    def write(self) -> None:
        """Replace the file. Of several failures in a row only the first is logged."""
        text = json.dumps({**self._values, "updatedAt": round(time.time(), 3), "counters": self._counters})
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
    """Return how much a micro-batch adds to each of the host's counters."""
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
