"""Processes of this machine, told from others that bear the same number later or elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

UNKNOWN_START = "0"


class ProcessStat(NamedTuple):
    """A process as the kernel sees it; `started` counts its ticks since the boot."""

    state: str
    started: str

    @property
    def has_ended(self) -> bool:
        """Also if nobody has reaped it, as in a container without an init."""
        return self.state in ("Z", "X")


def stat_of(pid: int) -> ProcessStat | None:
    """Return the fields of a process; None if there is no such process, or the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return ProcessStat(fields[0], fields[19])
    except (OSError, IndexError):
        return None


def started_at(pid: int) -> str:
    """Return the start of a process. With its number, this names a process for good; UNKNOWN_START where the system
    does not say.
    """
    found = stat_of(pid)
    return found.started if found else UNKNOWN_START


@cache
def boot_id() -> str | None:
    """Return the id of this boot of this machine; None where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
