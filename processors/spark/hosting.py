"""Finding the session host of this daemon, and starting it if there is none: once, under a file lock.

Everything of one daemon lives in a private directory of a name that nobody can foresee (`protocol.meeting`): lock,
socket and status, and the spool, which gets a second one where the first is no place for much data. The host is a
process in a session of its own, so that signals to the daemon's or the child's process group do not reach it; it
watches the daemon and ends after it.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from pathlib import Path

from protocol import meeting

PROGRAM = "mld-spark"
LOCK_FILE, SOCKET_FILE = "lock", "socket"
EXIT_CONFIGURATION = 2
_START = "import sys; sys.path.insert(0, {root!r}); from processors.spark.host import main; main()"


class HostingError(Exception):
    """There is no host; one sentence, and the exit status that fits it."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


def daemon_pid() -> int:
    """The daemon: as it says itself, else our parent."""
    told = os.environ.get("MLD_DAEMON_PID", "")
    return int(told) if told.isdigit() else os.getppid()


def run_directory(pid: int) -> Path:
    """The private directory of this daemon, made if need be. Raises HostingError if it is not ours alone."""
    return _met(pid, meeting.runtime_places(os.environb), len(SOCKET_FILE))


def scratch_directory(pid: int) -> Path:
    """The same for data, on the file system of temporary files; often the very same. Raises HostingError."""
    return _met(pid, meeting.temporary_places(os.environb))


def all_directories() -> list[tuple[meeting.Owner, Path]]:
    """Those of all daemons of this user."""
    places = meeting.runtime_places(os.environb)
    return [(owner, Path(path)) for owner, path in meeting.meetings(PROGRAM, places)]


def _met(pid: int, places: list[str], room_bytes: int = 0) -> Path:
    try:
        return Path(meeting.meet(PROGRAM, (pid, int(started_at(pid))), places, room_bytes))
    except meeting.MeetingError as error:
        raise HostingError(str(error)) from error


def started_at(pid: int) -> str:
    """Tells a process from another one that bore its number before; 0 where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def attach(properties_file: str) -> socket.socket:
    """A connection to the host of our daemon, which is started if need be. Raises HostingError."""
    pid = daemon_pid()
    directory = run_directory(pid)
    link = _connect(directory / SOCKET_FILE)
    if link is not None:
        return link
    with (directory / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the holder starts the host, which says within seconds whether it listens
        link = _connect(directory / SOCKET_FILE)
        if link is None:
            _start_host(directory, pid, properties_file)
            link = _connect(directory / SOCKET_FILE)
    if link is None:
        raise HostingError("the Spark session host ended right after its start; see the lines above")
    return link


def _connect(path: Path) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    except OSError as error:
        link.close()
        raise HostingError(f"cannot reach the Spark session host at {path}: {error.strerror}") from error
    return link


def _start_host(directory: Path, pid: int, properties_file: str) -> None:
    """Returns when the host listens. What it prints until then goes to our standard error."""
    import subprocess  # only the first child of a daemon needs it

    root = str(Path(__file__).resolve().parents[2])
    ready, told = os.pipe()
    try:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                _START.format(root=root),
                str(directory),
                properties_file,
                str(pid),
                str(told),
            ],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[told],
            start_new_session=True,
        )
    except OSError as error:
        raise HostingError(f"cannot start the Spark session host: {error.strerror}") from error
    finally:
        os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        listening = pipe.read(1) == b"+"
    if not listening:
        status = process.wait()
        message = f"the Spark session host did not start (exit status {status}); see the lines above"
        raise HostingError(message, EXIT_CONFIGURATION if status == EXIT_CONFIGURATION else 1)
