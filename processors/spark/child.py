"""`mld-spark`: the record processor of one shard, a thin relay between the daemon and the session host.

    executableName = mld-spark            (the daemon says in MLD_PROPERTIES_FILE which file it read)
    executableName = mld-spark app.properties                               (run by Amazon's Java daemon)
    mld-spark --check app.properties                                        (for people: could it run?)
    mld-spark --replay-dead-letter app.properties                             (for people: once more, please)
    mld-spark --archive-classes                                             (for people: sessions start faster)

It imports no pyspark, and little else: a child must start in no time.

The relay of one shard, between the daemon and the session host.

The records of a batch go into a page, a file that Spark reads; its status follows when the host has room for it. When
the host says that all sinks hold some of them, that is checkpointed, never before: between two actions if need be,
which our daemon stores at once, and Amazon's with the next action. If the host goes away this process ends with an
error, and the daemon starts it anew at the last checkpoint.

A child finds the session host of its daemon, and starts it if there is none: once, under a file lock. The host is a
process in a session of its own, so that signals to the daemon's or the child's process group do not reach it; it
watches the daemon and ends after it.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import mld
from mld.processors.spark import link
from mld.processors.spark.link import EXIT_CONFIGURATION, EXIT_FAILURE, LOCK_FILE, SOCKET_FILE, FatalError
from mld.processors.standard import claim_standard_streams

if TYPE_CHECKING:
    from mld.processors.spark.batch.page_file import PageWriter
    from mld.processors.spark.batch.record_columns import RecordColumns


_START = "import sys; sys.path.insert(0, {root!r}); from mld.processors.spark.host.session_host import main; main()"


def daemon_pid() -> int:
    """Return the daemon: as it says itself, else our parent."""
    told = os.environ.get("MLD_DAEMON_PID", "")
    return int(told) if told.isdigit() else os.getppid()


def attach(properties_file: str) -> socket.socket:
    """Return a connection to the host of our daemon, which is started if need be. Raises FatalError."""
    pid = daemon_pid()
    directory = link.run_directory(pid)
    with (directory / LOCK_FILE).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the holder starts the host, which says within seconds whether it listens
        connection = _connect(directory / SOCKET_FILE)
        if connection is None:
            _start_host(directory, pid, properties_file)
            connection = _connect(directory / SOCKET_FILE)
    if connection is None:
        raise FatalError("the Spark session host ended right after its start; see the lines above")
    return connection


def _connect(path: Path) -> socket.socket | None:
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
    """Wait until the host listens. What it prints until then goes to our standard error."""
    import subprocess  # only the first child of a daemon needs it

    ready, told = os.pipe()
    start = _START.format(root=str(Path(mld.__file__).resolve().parents[1]))
    arguments = [str(directory), properties_file, str(pid), str(told)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", start, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[told],
            start_new_session=True,
        )
    except OSError as error:
        raise FatalError(f"cannot start the Spark session host: {error.strerror}") from error
    finally:
        os.close(told)
    with os.fdopen(ready, "rb") as pipe:
        listening = pipe.read(1) == b"+"
    if not listening:
        status = process.wait()
        message = f"the Spark session host did not start (exit status {status}); see the lines above"
        raise FatalError(message, EXIT_CONFIGURATION if status == EXIT_CONFIGURATION else EXIT_FAILURE)


CHECKPOINT_ATTEMPTS_MAX = 6
"""At the end of a shard; with the delays below some 8 s. In between the next batch is the next attempt."""
RETRY_BASE_S = 0.25
RETRY_DELAY_MAX_S = 4.0
START_WAIT_S = 600.0
"""Longest wait for READY; the host gives up earlier by itself (`mld.spark.startTimeoutMillis`)."""
RECORDS = {"action": "processRecords"}
RECORDS_START = b'{"action":"processRecords"'
"""How a line begins that is read as columns only."""
READ_BYTES = 256 * 1024
_RETRIED = ("ThrottlingException", "KinesisClientLibDependencyException")
_LOST = "ShutdownException"


class HostConnection:
    """The child's end of the link: what was brought to the host, and what is committed of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self.ready: dict[str, Any] = {}
        """What READY has said, once it has come."""
        self.brought = self.committed = 0
        """The number of the last line whose records are in a page, and of the last one that is committed."""
        self.position: tuple[str, int] | None = None
        """Position of the last record committed, until it is checkpointed."""
        self.may_go = False
        self._page: PageWriter | None = None
        self._page_bytes = 0
        """Of the lines in it."""
        self._pages = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        if self._page is not None:
            self._page.abandon()
        self._socket.close()

    def hello(self, shard_id: str, sequence: str | None, sub: int | None) -> None:
        from mld.processors.spark import high_water_marks as of

        names = {"stream": of.stream_key(os.environ), "shard": shard_id, "sequence": sequence, "sub": sub}
        identity = {"arn": os.environ.get(of.ARN_VARIABLE), "created": os.environ.get(of.CREATED_VARIABLE)}
        ancestors = os.environ.get(of.ANCESTORS_VARIABLE, "").split()
        self.send(link.HELLO, {**names, **identity, "ancestors": ancestors, "version": link.VERSION})

    # --- records -----------------------------------------------------------------------------------------------------

    def bring(self, groups: Iterable[RecordColumns], size: int, behind: int | None) -> None:
        """Put the records of a line into the page, once there is room for their `size`. `behind`: how far they are
        behind the tip. Raises FatalError."""
        self.send(link.ROOM, {"size": size, "behind": behind})
        while not self.may_go:
            self.receive()
        self.may_go = False
        if not size:
            return
        if self._page is None:
            self._page, self._page_bytes = self._new_page(), 0
        for group in groups:
            self._page.add(group)
        self.brought += 1
        self._page_bytes += size
        if self._page_bytes >= self.ready["pageBytes"]:
            self.end_page()

    def end_page(self) -> None:
        """Say that the page is complete, or that there is none. Raises FatalError."""
        if self._page is None:
            self.send(link.PAGE, {"records": 0})
            return
        page, self._page = self._page.close(), None
        said = page._replace(size=self._page_bytes)._asdict()
        self.send(link.PAGE, {"number": self._pages, "upto": self.brought, **said})

    def _new_page(self) -> PageWriter:
        from mld.processors.spark.batch.page_file import PageWriter
        from mld.processors.spark.high_water_marks import StreamShard

        self._pages += 1
        path = Path(f"{self.ready['pages']}{self._pages:08d}.parquet")
        return PageWriter(path, StreamShard(self.ready["stream"], self.ready["shard"]))

    # --- frames ------------------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take one frame. Raises FatalError if the host has failed or is gone."""
        kind, length = link.decode_header(self._exactly(link.HEADER.size))
        body = link.decode_body(self._exactly(length))
        if kind == link.READY:
            self.ready = body
        elif kind == link.GO:
            self.may_go = True
        elif kind == link.CUT:
            self.end_page()
        elif kind == link.COMMITTED:
            self.committed = body["upto"]
            self.position = (body["sequence"], body["sub"])
        elif kind == link.SAID:
            sys.stderr.write(body["text"])
        elif kind == link.FAILED:
            raise FatalError(body["reason"], body.get("status", EXIT_FAILURE))

    def asked(self, kind: int, is_done: Callable[[], bool]) -> bool:
        """Ask the host for something that its sinks have to take; return whether they have, in the time for that."""
        self.send(kind)
        deadline = time.monotonic() + self.ready["drainMillis"] / 1000
        while not is_done():
            if not self.receive_within(deadline - time.monotonic()):
                return False
        return True

    def receive_within(self, seconds: float) -> bool:
        """Take one frame if one comes in time."""
        if not select.select([self._socket], [], [], max(0.0, seconds))[0]:
            return False
        self.receive()
        return True

    def send(self, kind: int, body: dict[str, Any] | None = None) -> None:
        """Send one frame. Raises FatalError with the host's last word if the host is gone."""
        try:
            self._socket.sendall(link.encode(kind, body))
        except OSError:
            while True:  # the host has closed the link: what it said last is the reason, if there is one
                self.receive()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except OSError:
                piece = b""
            if not piece:
                raise FatalError("the Spark session host went away; the shard starts again from its checkpoint")
            data += piece
        return data


class DaemonLines:
    """Lines of the daemon, of which two may come at once: the reply to a checkpoint, and an action."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._stdin = stdin
        self._rest = b""

    def fileno(self) -> int:
        return self._stdin.fileno()

    def is_there(self) -> bool:
        """Return whether a line has been read besides the last one."""
        return b"\n" in self._rest

    def read(self) -> bytes:
        """Return the next line; b"" at the end. Raises FatalError."""
        pieces = [self._rest]
        while b"\n" not in pieces[-1] and (piece := os.read(self.fileno(), READ_BYTES)):
            pieces.append(piece)
        data = b"".join(pieces)
        end = data.find(b"\n") + 1
        if data and not end:
            raise FatalError("the daemon went away in the middle of a message")
        self._rest = data[end:]
        return data[:end]


class ChildRelay:
    """Serves one daemon for one shard."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, attach: Callable[[], socket.socket]) -> None:
        """Prepare the relay; `attach` gives a connection to the host."""
        self._attach = attach
        self._lines = DaemonLines(stdin)
        self._stdout = stdout
        self._host: HostConnection | None = None
        self._lost = False
        self._asked: tuple[str | None, int | None] | None = None
        """The checkpoint whose reply has not come."""

    def serve(self) -> None:
        """Serve until the daemon closes our input. Raises FatalError."""
        while line := self._next_line():
            message = RECORDS if line.startswith(RECORDS_START) else _message(line)
            action = message["action"]
            if action == "checkpoint":
                self._replied(message.get("error"))
                if message.get("error") is None:
                    self._checkpoint()  # what was committed meanwhile
                continue
            if action == "initialize":
                self._initialize(message)
            elif action == "processRecords":
                self._process_records(line)
            elif action == "shardEnded" or (action == "shutdown" and message.get("reason") == "TERMINATE"):
                self._shard_ended()
            elif action == "shutdownRequested":
                self._shutdown_requested()
            elif action in ("leaseLost", "shutdown"):
                self._leave()
            self._write({"action": "status", "responseFor": action})
        if self._host is not None:
            self._host.send(link.BYE)

    # --- actions -----------------------------------------------------------------------------------------------------

    def _initialize(self, message: dict[str, Any]) -> None:
        host = self._host = HostConnection(self._attach())
        host.hello(message["shardId"], message.get("sequenceNumber"), message.get("subSequenceNumber"))
        deadline = time.monotonic() + START_WAIT_S
        while not host.ready:
            if not host.receive_within(deadline - time.monotonic()):
                raise FatalError(f"the Spark session host was not ready within {START_WAIT_S:g} s")

    def _process_records(self, line: bytes) -> None:
        if (host := self._connected()) is not None:
            from mld.processors.spark.batch.record_columns import read_line

            host.bring(*read_line(line))
            while host.receive_within(0.0):
                pass
            self._checkpoint()

    def _shutdown_requested(self) -> None:
        if (host := self._settled()) is not None:
            if not self._flush(host):
                sys.stderr.write(
                    "not all records were committed in time; the next owner of the shard gets them again\n"
                )
            if host.position is not None:
                self._ask_patiently(*host.position)

    def _shard_ended(self) -> None:
        if (host := self._settled()) is not None:
            if not self._flush(host) or not host.asked(link.ENDED, lambda: host.may_go):
                raise FatalError(
                    "the last records of the shard were not committed in time; they are delivered again "
                    "(key mld.spark.drainTimeoutMillis)"
                )
            host.position = None
            self._ask_patiently(None, None)

    def _leave(self) -> None:
        """Leave the host, as the lease is lost: what is not committed is not for us to commit."""
        self._lost = True
        if self._host is not None:
            self._host.send(link.BYE)
            self._host.close()
            self._host = None

    def _connected(self) -> HostConnection | None:
        """Return the link to the host; None once the lease is lost. Raises FatalError before the first action."""
        if self._host is None and not self._lost:
            raise FatalError("the daemon sent an action before initialize")
        return self._host

    def _settled(self) -> HostConnection | None:
        """Return the same, with no checkpoint open."""
        if self._asked is not None:
            self._await_reply()
        return self._connected()

    def _flush(self, host: HostConnection) -> bool:
        """Return whether all that was brought is committed in time."""
        return host.asked(link.FLUSH, lambda: host.committed >= host.brought)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Ask for a checkpoint of what is committed, if that is news; the reply may come after other lines. A failure
        that may pass is left to the next commit or batch."""
        if self._host is not None and self._host.position is not None and self._asked is None:
            self._ask(*self._host.position)

    def _ask(self, sequence: str | None, sub: int | None) -> None:
        self._asked = sequence, sub
        self._write({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub})

    def _replied(self, error: str | None) -> None:
        """Take the reply to what was asked. Raises FatalError if the daemon refuses it for good."""
        if self._asked is None:
            raise FatalError("the daemon answers a checkpoint that nobody has asked for")
        position, self._asked = self._asked, None
        if error == _LOST:
            self._leave()
        elif error is None:
            if self._host is not None and self._host.position == position:
                self._host.position = None
        elif error not in _RETRIED:
            raise FatalError(f"the daemon refused the checkpoint at {position[0]}:{position[1]}: {error}")

    def _await_reply(self) -> str | None:
        """Return the error in the reply; while an action is being answered nothing else comes."""
        line = self._lines.read()
        if not line:
            raise FatalError("the daemon went away while a checkpoint was open")
        error = json.loads(line).get("error")
        self._replied(error)
        return None if error is None else str(error)

    def _ask_patiently(self, sequence: str | None, sub: int | None) -> None:
        """Have a checkpoint stored, unless the lease is lost: `_lost` tells. Raises FatalError."""
        for attempt in range(CHECKPOINT_ATTEMPTS_MAX):
            self._ask(sequence, sub)
            error = self._await_reply()
            if error is None or self._lost:
                return
            time.sleep(min(RETRY_DELAY_MAX_S, RETRY_BASE_S * 2**attempt))
        raise FatalError(f"the checkpoint still fails after {CHECKPOINT_ATTEMPTS_MAX} attempts: {error}")

    # --- lines -------------------------------------------------------------------------------------------------------

    def _next_line(self) -> bytes:
        """Return the daemon's next line; b"" at the end. What the host says meanwhile is taken note of."""
        while self._host is not None and not self._lines.is_there():
            ends: list[DaemonLines | HostConnection] = [self._lines, self._host]
            readable = select.select(ends, [], [])[0]
            if self._host in readable:
                before = self._host.position
                self._host.receive()
                if self._host.position != before:
                    self._checkpoint()
            if self._lines in readable:
                break
        return self._lines.read()

    def _write(self, message: dict[str, Any]) -> None:
        try:
            self._stdout.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
            self._stdout.flush()
        except BrokenPipeError:
            raise FatalError("the daemon has closed our output") from None


def _message(line: bytes) -> dict[str, Any]:
    """Return what the daemon says, which has an `action`. Raises FatalError."""
    try:
        message: dict[str, Any] = json.loads(line)
        message["action"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FatalError(f"the daemon sent what is no message ({error!r}): {line[:80]!r}") from error
    return message


PROGRAMS = {
    "--check": "host.start_up",
    "--replay-dead-letter": "replay",
    "--archive-classes": "host.class_training",
}
USAGE = """usage: mld-spark [APP.properties]          a record processor: executableName of a properties file
       mld-spark --check APP.properties  could it run? Java, PySpark and the pipeline, without a session
       mld-spark --replay-dead-letter APP.properties    its letters once more through the pipeline
       mld-spark --archive-classes       once in each environment: sessions start faster from then on
"""


def properties_file(arguments: list[str]) -> str:
    """Return the file that the daemon read. Raises FatalError if nobody says which."""
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        raise FatalError(f"{' '.join(arguments)}: not understood\n{USAGE}".rstrip(), EXIT_CONFIGURATION)
    file = arguments[0] if arguments else os.environ.get("MLD_PROPERTIES_FILE")
    if not file:
        raise FatalError("which properties file? Write executableName = mld-spark app.properties", EXIT_CONFIGURATION)
    return str(Path(file).absolute())


def main() -> NoReturn:
    if sys.argv[1:2] in (["--help"], ["-h"]):
        sys.stdout.write(USAGE)
        sys.exit()
    if program := PROGRAMS.get("".join(sys.argv[1:2])):
        sys.exit(import_module(f"mld.processors.spark.{program}").main(sys.argv[2:]))
    stdin, stdout = claim_standard_streams()
    if not os.isatty(stdin.fileno()):
        # A signal to a whole group or control group reaches us too; the daemon decides when we are done.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    status = 0
    try:
        ChildRelay(stdin, stdout, partial(attach, properties_file(sys.argv[1:]))).serve()
    except FatalError as error:
        sys.stderr.write(f"mld-spark: {error}\n")
        status = error.status
    except link.LinkError as error:
        sys.stderr.write(f"mld-spark: the session host and this child do not understand each other: {error}\n")
        status = EXIT_FAILURE
    sys.stderr.flush()
    os._exit(status)  # nothing of ours is left to be written, and an interpreter takes its time to end


if __name__ == "__main__":
    main()
