"""The private directory in which the children of a daemon find its session host.

Nobody can guess its name (`mld.protocol.meeting`). It holds the lock, the socket and the status of the host. The host's
data are there, too, unless its file system is small: then the data get a second directory.

Quick to import: the child must start in no time.
"""

from __future__ import annotations

import os
from pathlib import Path

from mld.processors.spark.fatal import FatalError
from mld.protocol import meeting

PROGRAM = "mld-spark"
LOCK_FILE, SOCKET_FILE = "lock", "socket"


def started_at(pid: int) -> str:
    """Return when a process started, in ticks since boot. Together with its pid this identifies a process. "0" if the
    system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def run_directory(pid: int) -> Path:
    """Return the private directory of this daemon; create it if needed. Raises FatalError if it is not ours alone."""
    return _met(pid, meeting.runtime_places(os.environb), len(SOCKET_FILE))


def scratch_directory(pid: int) -> Path:
    """Return the directory for data, on the file system of temporary files; often the same one. Raises FatalError."""
    return _met(pid, meeting.temporary_places(os.environb))


def all_directories() -> list[tuple[meeting.Owner, Path]]:
    """Return the directories of all daemons of this user."""
    places = meeting.runtime_places(os.environb)
    return [(owner, Path(path)) for owner, path in meeting.meetings(PROGRAM, places)]


def _met(pid: int, places: list[str], room_bytes: int = 0) -> Path:
    try:
        return Path(meeting.meet(PROGRAM, (pid, int(started_at(pid))), places, room_bytes))
    except meeting.MeetingError as error:
        raise FatalError(str(error)) from error
