"""Where the children of a daemon and its session host meet: lock, socket and status.

They stand in a private directory whose name nobody can foresee (`mld.protocol.meeting`). The host's data stand there
too, unless it is no place for much data: then they get a second one.
"""

from __future__ import annotations

import os
from pathlib import Path

from mld.processors.spark.processes import started_at
from mld.protocol import meeting

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
