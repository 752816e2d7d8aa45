"""The session hosts of `mld-spark` that run on this machine for this user, read from their status files.

`run_directory.py` and `host/host_status.py` in `processors/spark` decide where these files are and what they contain. A
file is believed only if its directory belongs to this user alone, and only while the process that wrote it lives.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.properties.spark_names import PROGRAM
from mld.protocol import meeting

if TYPE_CHECKING:
    from mld.metrics.spark_figures import SparkFigures

STATUS_FILE = "status.json"
STATUS_BYTES_MAX = 1 << 20
UI_PORT = 4040  # Spark's `spark.ui.port`; if it is taken, the next free one
SHOWN_FIELDS = (
    *("pid", "daemonPid", "ui", "spark", "applicationId", "startedAt", "updatedAt"),
    *("uncommittedSince", "triggerSince", "counters"),
)
"""Fields of a host's status file that the status page shows. `ui` is an address on this machine."""
LOCAL = "local"
"""A Spark master that begins with this word runs its JVM on this machine; it is also the default master."""
UI_ENABLED_KEY, UI_PORT_KEY = "spark.ui.enabled", "spark.ui.port"


@dataclass(frozen=True, slots=True)
class SparkHost:
    """A running host. `ui` is None if it has no UI of its own. `counters` count since its start."""

    pid: int
    daemon_pid: int
    application: str
    properties_file: str
    ui: str | None
    about: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


def running(application: str) -> list[SparkHost]:
    """Return the running hosts of this application, the newest first."""
    hosts = [host for file in _files() if (host := _read(file)) is not None and host.application == application]
    return sorted(hosts, key=lambda host: float(host.about.get("startedAt", 0)), reverse=True)


def shown(application: str) -> list[dict[str, Any]]:
    """Return, for each running host of this application, the fields that the status page shows."""
    return [{name: host.about.get(name) for name in SHOWN_FIELDS} for host in running(application)]


def figures(application: str, daemon_pid: int) -> SparkFigures | None:
    """Return the metrics that a daemon's session host reports; None if the daemon has no host, or the host reports no
    figures.
    """
    from mld.metrics.spark_figures import SparkFigures  # imported here, as it would slow the start of `mld check`

    for host in running(application):
        if host.daemon_pid == daemon_pid:
            about, counters = host.about, host.counters
            try:
                return SparkFigures(
                    written_at=float(about["updatedAt"]),
                    interval_s=float(about["triggerIntervalSeconds"]),
                    uncommitted_since=_time(about["uncommittedSince"]),
                    trigger_since=_time(about["triggerSince"]),
                    dropped=int(counters["dropped"]),
                    malformed=int(counters["malformed"]),
                    poisoned=int(counters["poisoned"]),
                    stray=int(counters.get("stray", 0)),
                )
            except (KeyError, TypeError, ValueError):
                return None
    return None


def _time(value: Any) -> float | None:
    """Return a time of a status file as a number; None if the file has null. Raises TypeError or ValueError."""
    return None if value is None else float(value)


def expected_ui(conf: Mapping[str, str], master: str | None = None) -> str:
    """Return a text that says where a host with this configuration will have its UI; `conf` holds the keys of
    `mld.spark.conf.*`, `master` is `mld.spark.master`.
    """
    on = conf.get(UI_ENABLED_KEY, "").strip().lower()
    if on == "false":
        return f"none (mld.spark.conf.{UI_ENABLED_KEY} is false)"
    if not on and (master or LOCAL).startswith(LOCAL):
        return f"none: every user of this machine could read it; mld.spark.conf.{UI_ENABLED_KEY} = true asks for it"
    port = conf.get(UI_PORT_KEY, str(UI_PORT)).strip()
    if port == "0":
        return "http://127.0.0.1 on a free port, which the log line `session ready` names"
    return f"http://127.0.0.1:{port}, or the next free port; the log line `session ready` names it"


def _files() -> Iterator[Path]:
    """Yield the status files in directories that belong to this user alone."""
    for _, directory in meeting.meetings(PROGRAM, meeting.runtime_places(os.environb)):
        file = Path(directory) / STATUS_FILE
        if file.is_file():
            yield file


def _read(file: Path) -> SparkHost | None:
    """Return the host that a status file describes; None if the file is unreadable, or its process no longer runs."""
    try:
        with file.open("rb") as stream:
            value = json.loads(stream.read(STATUS_BYTES_MAX))
        if _started_at(value["pid"]) != value["pidStarted"]:
            return None
        return SparkHost(
            pid=value["pid"],
            daemon_pid=value["daemonPid"],
            application=value["application"],
            properties_file=value["propertiesFile"],
            ui=value.get("ui"),
            about=value,
            counters=value["counters"],
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _started_at(pid: int) -> str | None:
    """Return when a process was started, in the kernel's ticks; this distinguishes it from an earlier process with the
    same id. Return "0" if the system does not report it, and None if no such process runs.
    """
    try:  # `starttime` is field 22; fields are counted after the ")", because the name before it may contain spaces
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return "0"
