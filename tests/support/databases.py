"""A PostgreSQL as a process of the tests: on loopback, at a free port, with a password, and killable.

    with Postgres() as database:
        database.url, database.user, database.password        # what JDBC is told
        database.kill(); database.start()                     # a crash, and the same database at the same address

`make test-jdbc` fetches the binaries (`tests.support.fetch_databases`). It refuses to run as root, so there it runs as
nobody; its data are in a directory of TMPDIR, because nobody cannot enter those of pytest.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.support.daemon import until
from tests.support.fetch_databases import POSTGRES_DRIVER, POSTGRES_HOME

START_S = 60.0
STOP_S = 30.0
LOG_TAIL = 2_000
UNPRIVILEGED = "nobody"
READY = "database system is ready to accept connections"
USER, PASSWORD, DATABASE = "mld", "p4ss w=rd;?&", "mld"
"""The user owns the database. The password has what upsets a URL or a properties file."""


class Postgres:
    """A server with one database; a context manager that ends it and removes its data."""

    driver = "org.postgresql.Driver"
    jar = POSTGRES_DRIVER.file
    user = USER
    password = PASSWORD
    database = DATABASE
    host = "127.0.0.1"

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self.data = self.directory / "data"
        self.log = self.directory / "log"
        self.account = UNPRIVILEGED if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """For JDBC, without user and password."""
        return f"jdbc:postgresql://{self.host}:{self.port}/{self.database}"

    def __enter__(self) -> Self:
        try:
            self._make()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, at the port that it had before, and wait until it answers."""
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=self._user(),
            )
        until(self._is_ready, START_S, f"{READY} in {self.log}")

    def stop(self) -> None:
        """Let it end in order; connections are closed by it."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As a power cut would, except that what it has written stays in the file system."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """It holds its connections and says nothing any more, until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, everyone = self._process, self._pids()
        if process is None:
            return
        if number is signal.SIGKILL:
            self._signal(signal.SIGSTOP)  # so that it starts no more of them
            everyone = self._pids()
            self._signal(signal.SIGKILL)
        else:
            process.send_signal(number)
        process.wait(STOP_S)
        until(lambda: not any(map(_is_alive, everyone)), STOP_S, f"the end of {everyone}")
        self._process = None

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _pids(self) -> list[int]:
        """The server, and the processes that it has for its connections, each a leader of its own group."""
        if self._process is None:
            return []
        pid = self._process.pid
        with contextlib.suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def _is_ready(self) -> bool:
        said = self.log.read_text(errors="replace")
        assert self._process is not None and self._process.poll() is None, said[-LOG_TAIL:]
        return READY in said

    def _user(self) -> str | None:
        return self.account if os.geteuid() == 0 else None

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, cwd=self.directory, user=self._user()
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-LOG_TAIL:]

    def _make(self) -> None:
        self.directory.chmod(0o755)
        self.data.mkdir()
        secret = self.directory / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            shutil.chown(self.data, self.account)
            shutil.chown(secret, self.account)
        self._run(
            POSTGRES_HOME / "bin" / "initdb", "-D", self.data, "-U", self.user, "--pwfile", secret,
            "--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync",
        )  # fmt: skip
        create = f"CREATE DATABASE {self.database}\n"
        command = [str(POSTGRES_HOME / "bin" / "postgres"), "--single", "-D", str(self.data), "postgres"]
        subprocess.run(
            command, input=create.encode(), capture_output=True, check=True, cwd=self.directory, user=self._user()
        )

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",  # processes are killed here, never the machine
            "max_connections": 50,
            "shared_buffers": "32MB",
            "autovacuum": "off",
        }
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(POSTGRES_HOME / "bin" / "postgres"), "-D", str(self.data), *words]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
