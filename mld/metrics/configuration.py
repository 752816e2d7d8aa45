"""The state of a daemon's configuration files: faults found at the last read, and keys that wait for a restart.

A file that cannot be used changes nothing in a running daemon, but makes its next start fail. So the fault is kept here
and shown on all pages and commands, until the file is read without a fault. The files are the properties file, which is
read again on request, and the list of streams, which is read every 20 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mld.core.clock import iso_time
from mld.metrics.declaring import Instant, gauge, shown

WHY_CHARACTERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """Why a file could not be used, and when this was last found, in epoch seconds."""

    why: str
    at: float


@dataclass(slots=True, eq=False)
class ConfigurationMetrics:
    """The state of one daemon's files. `waiting` has the keys whose new values in the file need a restart."""

    loaded_at: float | None = gauge(
        "mld_config_last_reload_success_timestamp_seconds",
        "When a file of the configuration was last read, at the start or later, and could be used.",
    )
    refused: dict[str, RefusedFile] = field(init=False, default_factory=dict)
    """The files that could not be used when last read, by name."""
    waiting: tuple[str, ...] = field(init=False, default=())

    @shown(
        "mld_config_last_reload_successful",
        "0 while the properties file, or the list of streams, could not be used when it was last read; else 1.",
    )
    def is_current(self, _: Instant) -> int:
        return int(not self.refused)

    @shown("mld_config_keys_waiting", "Keys whose new values in the properties file wait for a restart.")
    def keys_waiting(self, _: Instant) -> int:
        return len(self.waiting)

    def note_read(self, file: str, at: float) -> None:
        """Note that a file could be used."""
        self.refused.pop(file, None)
        self.loaded_at = at

    def note_refused(self, file: str, why: str, at: float) -> None:
        """Note that a file could not be used."""
        self.refused[file] = RefusedFile(why[:WHY_CHARACTERS_MAX], at)

    def reasons(self) -> dict[str, str]:
        """Return for each file that could not be used a text with the reason and the time of the read."""
        return {file: f"{one.why} (read at {iso_time(one.at)})" for file, one in sorted(self.refused.items())}

    def value(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        refused = [{"file": file, "why": one.why, "at": one.at} for file, one in sorted(self.refused.items())]
        return {"loadedAt": self.loaded_at, "refused": refused, "needsRestart": list(self.waiting)}
