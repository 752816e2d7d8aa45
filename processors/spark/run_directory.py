"""The private directory in which the children of a daemon find its session host.

Other users cannot guess its name (`mld.protocol.meeting`). It has the lock, the socket and the status file of the host.
The host's data are there, too, if it is on the file system of temporary files; otherwise the data get a second
directory, on that file system.

This module is quick to import, because a child has to start quickly.
"""

from __future__ import annotations

import os
from pathlib import Path

from mld.processors.spark.fatal import FatalError
from mld.protocol import meeting

PROGRAM = "mld-spark"
LOCK_FILE, SOCKET_FILE = "lock", "socket"


def started_at(pid: int) -> str:
    """Return when a process started, in ticks since boot; "0" if this is not known. Together with its pid this
    identifies a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def run_directory(pid: int) -> Path:
    """Return the private directory of this daemon; make it if needed. Raises FatalError if other users have access."""
    return _met(pid, meeting.runtime_places(os.environb), len(SOCKET_FILE))


def scratch_directory(pid: int) -> Path:
    """Return this daemon's directory for data, on the file system of temporary files. Often it is the same as
    `run_directory`. Raises FatalError."""
    return _met(pid, meeting.temporary_places(os.environb))


def all_directories() -> list[tuple[meeting.Owner, Path]]:
    """Return the directories of all daemons of this user."""
    places = meeting.runtime_places(os.environb)
    return [(owner, Path(path)) for owner, path in meeting.meetings(PROGRAM, places)]


def _met(pid: int, places: list[str], room_bytes: int = 0) -> Path:
    """Return this daemon's directory in the first of these places that can be used; make it if needed. `room_bytes` is
    the length of the socket's name, because the whole path of a socket must not be too long. Raises FatalError.
    """
    try:
        return Path(meeting.meet(PROGRAM, (pid, int(started_at(pid))), places, room_bytes))
    except meeting.MeetingError as error:
        raise FatalError(str(error)) from error
