"""The record processor of one shard: a thin relay between the daemon and the session host.

It passes the records of a batch to the host, and answers the daemon once the host has room for them. It checkpoints
records when the host has reported that all sinks hold them, and never before. It may ask for a checkpoint between two
actions of the daemon: our daemon stores it at once, Amazon's with the next action. If the host goes away, this process
ends with an error, and the daemon starts it again at the last checkpoint.

This module is quick to import, because a child has to start quickly.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, BinaryIO

from mld.processors.spark import link
from mld.processors.spark.fatal import FatalError
from mld.processors.spark.host_connection import HostConnection

CHECKPOINT_ATTEMPTS_MAX = 6
"""How often a checkpoint is tried when a shard ends or is about to move. With the delays below this takes some 8 s. Any
other checkpoint that fails is simply tried again with the next batch.
"""
RETRY_BASE_S = 0.25
RETRY_DELAY_MAX_S = 4.0
START_WAIT_S = 600.0
"""Longest wait for READY. Usually the host gives up before, by itself (`mld.spark.startTimeoutMillis`)."""
RECORDS = {"action": "processRecords"}
RECORDS_START = b'{"action":"processRecords"'
"""A line with records begins with this. It is not parsed as JSON here: `record_columns` cuts it into columns."""
FIRST_READ_BYTES, READ_BYTES = 64 * 1024, 256 * 1024
"""Size of the first read of a line, and of further ones. Most lines of a quiet shard come with the first. Its buffer is
so small that the C library keeps it, while a larger one is mapped and unmapped by system calls for each read.
"""
_RETRIED = ("ThrottlingException", "KinesisClientLibDependencyException")
_LOST = "ShutdownException"


class DaemonLines:
    """Reads lines of the daemon. Two lines may arrive together: the reply to a checkpoint, and the next action."""

    def __init__(self, stdin: BinaryIO) -> None:
        self._stdin = stdin
        self._rest = b""

    def fileno(self) -> int:
        return self._stdin.fileno()

    def is_there(self) -> bool:
        """Return whether a further line has been received already."""
        return b"\n" in self._rest

    def read(self) -> bytes:
        """Return the next line; b"" at the end of the input. Raises FatalError."""
        pieces = [self._rest]
        size = FIRST_READ_BYTES
        while b"\n" not in pieces[-1] and (piece := os.read(self.fileno(), size)):
            pieces.append(piece)
            size = READ_BYTES
        data = b"".join(pieces)
        end = data.find(b"\n") + 1
        if data and not end:
            raise FatalError("the daemon went away in the middle of a message")
        self._rest = data[end:]
        return data[:end]


class ChildRelay:
    """Serves one daemon for one shard."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, attach: Callable[[], socket.socket]) -> None:
        """Prepare the relay. `attach` returns a connection to the host."""
        self._attach = attach
        self._lines = DaemonLines(stdin)
        self._stdout = stdout
        self._host: HostConnection | None = None
        self._lost = False
        self._asked: tuple[str | None, int | None] | None = None
        """The position of the checkpoint that was requested and whose reply has not come; None if there is none."""

    def serve(self) -> None:
        """Serve until the daemon closes our input. Each line is an action, which gets a status as its answer, or the
        reply to a checkpoint that we have asked for. Raises FatalError.
        """
        while line := self._next_line():
            message = RECORDS if line.startswith(RECORDS_START) else _message(line)
            action = message["action"]
            if action == "checkpoint":
                self._replied(message.get("error"))
                if message.get("error") is None:
                    self._checkpoint()  # for records that were committed meanwhile
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
            self._write(_status(action))
        if self._host is not None:
            self._host.send(link.BYE)

    # --- actions -----------------------------------------------------------------------------------------------------

    def _initialize(self, message: dict[str, Any]) -> None:
        """Attach to the host, and wait until it is ready. Raises FatalError."""
        host = self._host = HostConnection(self._attach())
        host.hello(message["shardId"], message.get("sequenceNumber"), message.get("subSequenceNumber"))
        deadline = time.monotonic() + START_WAIT_S
        while not host.ready:
            if not host.receive_within(deadline - time.monotonic()):
                raise FatalError(f"the Spark session host was not ready within {START_WAIT_S:g} s")

    def _process_records(self, line: bytes) -> None:
        """Pass a line of records to the host, and checkpoint the records that are committed. Do nothing once the lease
        is lost.
        """
        if (host := self._connected()) is not None:
            from mld.processors.spark.batch.record_columns import read_line

            host.bring(*read_line(line))
            while host.receive_within(0.0):
                pass
            self._checkpoint()

    def _shutdown_requested(self) -> None:
        """Ask the host to commit all records, and wait for that as long as the time allows. Then checkpoint those that
        are committed.
        """
        if (host := self._settled()) is not None:
            if not self._flush(host):
                sys.stderr.write(
                    "not all records were committed in time; the next owner of the shard gets them again\n"
                )
            if host.position is not None:
                self._ask_patiently(*host.position)

    def _shard_ended(self) -> None:
        """Ask the host to commit all records, and then to note the shard's end in the sinks. Once that is done,
        checkpoint the end, by a checkpoint without a position. Do nothing once the lease is lost. Raises FatalError if
        the host does not do it in time.
        """
        if (host := self._settled()) is not None:
            if not self._flush(host) or not host.asked(link.ENDED, lambda: host.may_go):
                raise FatalError(
                    "the last records of the shard were not committed in time; they are delivered again "
                    "(key mld.spark.drainTimeoutMillis)"
                )
            host.position = None
            self._ask_patiently(None, None)

    def _leave(self) -> None:
        """Leave the host, because the lease is lost. Another worker commits the remaining records."""
        self._lost = True
        if self._host is not None:
            self._host.send(link.BYE)
            self._host.close()
            self._host = None

    def _connected(self) -> HostConnection | None:
        """Return the connection to the host; None once the lease is lost. Raises FatalError before the first action."""
        if self._host is None and not self._lost:
            raise FatalError("the daemon sent an action before initialize")
        return self._host

    def _settled(self) -> HostConnection | None:
        """Wait for the reply to an open checkpoint, then return the connection to the host; None once the lease is
        lost. Raises FatalError.
        """
        if self._asked is not None:
            self._await_reply()
        return self._connected()

    def _flush(self, host: HostConnection) -> bool:
        """Ask the host to commit now. Return whether all records that the host was given are committed in time."""
        return host.asked(link.FLUSH, lambda: host.committed >= host.brought)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Ask for a checkpoint of the committed records, unless none of them is new or another request is open.

        The reply may come after other lines. If the checkpoint fails for a passing reason, it is tried again after the
        next commit or batch."""
        if self._host is not None and self._host.position is not None and self._asked is None:
            self._ask(*self._host.position)

    def _ask(self, sequence: str | None, sub: int | None) -> None:
        """Send a checkpoint of this position (None: the end of the shard), and note that its reply is awaited."""
        self._asked = sequence, sub
        self._write(_line({"action": "checkpoint", "sequenceNumber": sequence, "subSequenceNumber": sub}))

    def _replied(self, error: str | None) -> None:
        """Note the reply to the open checkpoint. Raises FatalError if the daemon refuses the checkpoint for good."""
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
        """Wait for the reply to the open checkpoint request, and return its error. Call it only while an action is
        unanswered: then the daemon sends nothing but this reply."""
        line = self._lines.read()
        if not line:
            raise FatalError("the daemon went away while a checkpoint was open")
        error = json.loads(line).get("error")
        self._replied(error)
        return None if error is None else str(error)

    def _ask_patiently(self, sequence: str | None, sub: int | None) -> None:
        """Try the checkpoint of this position (None: the end of the shard) until it is stored or the lease is lost
        (`_lost`). Raises FatalError after CHECKPOINT_ATTEMPTS_MAX attempts.
        """
        for attempt in range(CHECKPOINT_ATTEMPTS_MAX):
            self._ask(sequence, sub)
            error = self._await_reply()
            if error is None or self._lost:
                return
            time.sleep(min(RETRY_DELAY_MAX_S, RETRY_BASE_S * 2**attempt))
        raise FatalError(f"the checkpoint still fails after {CHECKPOINT_ATTEMPTS_MAX} attempts: {error}")

    # --- lines -------------------------------------------------------------------------------------------------------

    def _next_line(self) -> bytes:
        """Return the daemon's next line; b"" at the end. Handle frames from the host until it comes."""
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

    def _write(self, line: bytes) -> None:
        """Write a message to the daemon. Raises FatalError if the daemon does not read any more."""
        try:
            self._stdout.write(line)
            self._stdout.flush()
        except BrokenPipeError:
            raise FatalError("the daemon has closed our output") from None


def _line(message: dict[str, Any]) -> bytes:
    """Encode a message to the daemon."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


@lru_cache(maxsize=16)
def _status(action: str) -> bytes:
    """Return the line that answers an action. It is kept: encoding one costs as much as reading a small batch."""
    return _line({"action": "status", "responseFor": action})


def _message(line: bytes) -> dict[str, Any]:
    """Parse a line of the daemon, which must be an object with an `action`. Raises FatalError."""
    try:
        message: dict[str, Any] = json.loads(line)
        if not isinstance(message["action"], str):
            raise TypeError("its action is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FatalError(f"the daemon sent what is no message ({error!r}): {line[:80]!r}") from error
    return message
