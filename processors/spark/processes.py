"""Processes of this machine, told from others that bear the same number later or elsewhere.

Where the children of a daemon and its session host meet: lock, socket and status.

They stand in a private directory whose name nobody can foresee (`mld.protocol.meeting`). The host's data stand there
too, unless it is no place for much data: then they get a second one.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mld.protocol import meeting

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


PROGRAM = "mld-spark"
LOCK_FILE, SOCKET_FILE = "lock", "socket"
EXIT_FAILURE, EXIT_CONFIGURATION = 1, 2


class FatalError(Exception):
    """This process, a child or a host, cannot go on: one sentence, and its exit status."""

    def __init__(self, message: str, status: int = EXIT_FAILURE) -> None:
        super().__init__(message)
        self.status = status


def run_directory(pid: int) -> Path:
    """Return the private directory of this daemon, made if need be. Raises FatalError if it is not ours alone."""
    return _met(pid, meeting.runtime_places(os.environb), len(SOCKET_FILE))


def scratch_directory(pid: int) -> Path:
    """Return the same for data, on the file system of temporary files; often the very same. Raises FatalError."""
    return _met(pid, meeting.temporary_places(os.environb))


def all_directories() -> list[tuple[meeting.Owner, Path]]:
    """Return those of all daemons of this user."""
    places = meeting.runtime_places(os.environb)
    return [(owner, Path(path)) for owner, path in meeting.meetings(PROGRAM, places)]


def _met(pid: int, places: list[str], room_bytes: int = 0) -> Path:
    try:
        return Path(meeting.meet(PROGRAM, (pid, int(started_at(pid))), places, room_bytes))
    except meeting.MeetingError as error:
        raise FatalError(str(error)) from error
