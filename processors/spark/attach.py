"""Connects a child to the session host of its daemon, and starts the host if there is none.

The session host is the process that has the Spark session, one for each daemon. A file lock lets only one child start
it. The host is the leader of a process session of its own, so signals to the process group of the daemon or of a child
do not reach it. It watches the daemon, and ends after the daemon has ended.

This module is quick to import, because a child has to start quickly.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
from pathlib import Path

import mld
from mld.processors.spark.fatal import EXIT_CONFIGURATION, EXIT_FAILURE, FatalError
from mld.processors.spark.run_directory import LOCK_FILE, SOCKET_FILE, run_directory

_START = "import sys; sys.path.insert(0, {root!r}); from mld.processors.spark.host.process import main; main()"


def daemon_pid() -> int:
    """Return the daemon's process id: from the environment, where our daemon sets it, or else that of our parent."""
    named = os.environ.get("MLD_DAEMON_PID", "")
    return int(named) if named.isdigit() else os.getppid()


def attach(properties_file: str) -> socket.socket:
    """Return a connection to the host of our daemon; start the host if there is none. Raises FatalError."""
    pid = daemon_pid()
    directory = run_directory(pid)
    with (directory / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until the new host listens, which takes seconds
        connection = _connect(directory / SOCKET_FILE)
        if connection is None:
            _start_host(directory, pid, properties_file)
            connection = _connect(directory / SOCKET_FILE)
    if connection is None:
        raise FatalError("the Spark session host ended right after its start; see the lines above")
    return connection


def _connect(path: Path) -> socket.socket | None:
    """Return a connection to the host's socket; None if no host listens. Raises FatalError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        raise FatalError(f"cannot reach the Spark session host at {path}: {error.strerror}") from error
    return connection


def _start_host(directory: Path, pid: int, properties_file: str) -> None:
    """Start the host and wait until it listens. Until then its output goes to our standard error."""
    import subprocess  # only the first child of a daemon needs it

    reading_end, writing_end = os.pipe()  # the host writes a byte into the pipe when it listens
    start = _START.format(root=str(Path(mld.__file__).resolve().parents[1]))
    arguments = [str(directory), properties_file, str(pid), str(writing_end)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", start, *arguments],  # -P: import nothing from the working directory
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[writing_end],
            start_new_session=True,
        )
    except OSError as error:
        raise FatalError(f"cannot start the Spark session host: {error.strerror}") from error
    finally:
        os.close(writing_end)  # then only the host has this end, and the read below returns if the host dies
    with os.fdopen(reading_end, "rb") as pipe:
        listening = pipe.read(1) == b"+"
    if not listening:
        status = process.wait()
        message = f"the Spark session host did not start (exit status {status}); see the lines above"
        raise FatalError(message, EXIT_CONFIGURATION if status == EXIT_CONFIGURATION else EXIT_FAILURE)
