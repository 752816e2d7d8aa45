"""A small base class for record processors written in Python, and the loop that serves the daemon.

Rules: protocol#processor-base-class, protocol#child-messages, protocol#checkpoint-errors. A program is a subclass and
one line::

    if __name__ == "__main__":
        run(MyProcessor)

Three things it must never do: send a status for work that failed (an exception in your code ends the process, the
daemon starts it anew and delivers the records again), let a stray `print` into the protocol (standard output goes to
standard error), and take long to import.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

from mld.processors.checkpoint_errors import (
    CheckpointError,
    DaemonError,
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    ShutdownError,
    ThrottlingError,
)
from mld.processors.daemon_lines import (
    ReceivedAction,
    ReceivedReply,
    encode_checkpoint_request,
    encode_status,
    parse_daemon_line,
)
from mld.processors.standard import claim_standard_streams
from mld.protocol.messages import (
    CheckpointErrorName,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
    StreamLabel,
)

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "DaemonError",
    "DependencyError",
    "InvalidPositionError",
    "InvalidStateError",
    "Record",
    "RecordProcessor",
    "ShutdownError",
    "StreamLabel",
    "ThrottlingError",
    "run",
    "serve",
]
CHECKPOINT_ATTEMPTS_MAX = 6
"""With the delays below a checkpoint gives up after at most 16 s, well inside a usual time limit per message."""
RETRY_BASE_S = 0.5
RETRY_DELAY_MAX_S = 8.0
_ERRORS: dict[str, type[CheckpointError]] = {
    CheckpointErrorName.SHUTDOWN.value: ShutdownError,
    CheckpointErrorName.THROTTLING.value: ThrottlingError,
    CheckpointErrorName.DEPENDENCY.value: DependencyError,
    CheckpointErrorName.INVALID_STATE.value: InvalidStateError,
    CheckpointErrorName.ILLEGAL_ARGUMENT.value: InvalidPositionError,
}
_RETRIED = (ThrottlingError, DependencyError)


class Checkpointer:
    """Tells the daemon how far the work is done.

    It shares standard input with the loop that calls the processor, so use it inside a call of the processor only and
    on the thread of that call. Threads of your own do the work; wait for them before you checkpoint what they did.
    """

    def __init__(
        self,
        ask: Callable[[str | None, int | None], str | None],
        *,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._ask = ask
        self._sleep = sleep
        self._rng = rng or random.Random()

    def checkpoint(self, at: Record | str | None = None, sub_sequence_number: int | None = None) -> None:
        """Store that everything up to and including a position is done; returning means that it is stored.

        At a record, at a sequence number, or (None) at everything delivered so far. A sequence number without
        `sub_sequence_number` means its first sub-record, so prefer to pass the record. It blocks; throttling and
        failures of the lease table are tried six times, 0.5 to 8 s apart, which takes at most 16 s.

        Raises:
            ShutdownError: the lease is lost.
            ThrottlingError: after all retries.
            DependencyError: after all retries.
            InvalidStateError: the lease table is missing, or this is no time for checkpoints.
            InvalidPositionError: the position was not delivered, or lies before the last checkpoint.
            CheckpointError: any other error of the daemon.
            DaemonError: the daemon went away.
        """
        sequence = at
        if isinstance(at, Record):
            sequence, sub_sequence_number = at.sequence_number, at.sub_sequence_number
        assert not isinstance(sequence, Record)
        for attempt in range(1, CHECKPOINT_ATTEMPTS_MAX + 1):
            name = self._ask(sequence, sub_sequence_number)
            if name is None:
                return
            error = _ERRORS.get(name, CheckpointError)(name)
            if attempt == CHECKPOINT_ATTEMPTS_MAX or not isinstance(error, _RETRIED):
                raise error
            # Half fixed, half random: shards throttled together must not come back together.
            self._sleep(min(RETRY_DELAY_MAX_S, RETRY_BASE_S * 2 ** (attempt - 1)) * self._rng.uniform(0.5, 1.0))


class RecordProcessor(ABC):
    """The base of your processor: one object per process, and a process serves one shard.

    All methods are called one after the other, on the thread that called `run`. The daemon waits for each as long as it
    takes, unless `timeoutInSeconds` is set. An exception from any of them ends the process; the daemon starts another,
    which gets the records after the last checkpoint again. Only ShutdownError may pass: it just ends the work.
    """

    stream: StreamLabel | None = None
    """The shard's stream, from `initialize` on, if the application reads several (`mld.streams`)."""

    # Not abstract: having nothing to prepare is normal.
    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:  # noqa: B027
        """Begin a shard, in the first call. The position is the last checkpoint, or a sentinel such as TRIM_HORIZON."""

    @abstractmethod
    def process_records(
        self, records: Sequence[Record], checkpointer: Checkpointer, millis_behind_latest: int | None
    ) -> None:
        """Work on a batch. Returning means that the next one may come; only checkpoints are remembered.

        `millis_behind_latest` is how far the end of the batch is behind the tip of the shard; None if unknown.
        """

    @abstractmethod
    def shard_ended(self, checkpointer: Checkpointer) -> None:
        """Finish a shard that has no more records: end all work, then call `checkpointer.checkpoint()`.

        The child shards begin after that only; returning without it is an error, and the shard is delivered again from
        its last checkpoint.
        """

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:  # noqa: B027
        """Finish and checkpoint, because the shard is about to move or the daemon to stop. Doing nothing is safe."""

    def lease_lost(self) -> None:  # noqa: B027
        """Stop without a checkpoint, in the last call: another worker has the shard and may already work on it."""


def serve(
    processor: RecordProcessor,
    stdin: BinaryIO,
    stdout: BinaryIO,
    *,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> None:
    """Serve one daemon until the end of `stdin`; for tests of a processor without a daemon.

    Lets every exception of the processor but ShutdownError pass, without a status.

    Raises:
        DaemonError: the daemon breaks the protocol.
    """
    channel = _Channel(stdin, stdout)
    checkpointer = Checkpointer(channel.ask, sleep=sleep, rng=rng)
    lost = False
    while (received := channel.next_action()) is not None:
        if not lost or isinstance(received.action, LeaseLost):
            try:
                _dispatch(processor, received, checkpointer)
            except ShutdownError:
                # Another worker has the shard: answer what still comes, without work and without checkpoints.
                lost = True
        channel.write(encode_status(received.response_for))


def run(factory: Callable[[], RecordProcessor]) -> None:
    """Serve the daemon on standard input and output, then return: the last line of your program.

    `factory`, usually your class, makes the processor. From here on `print` goes to standard error, which the daemon
    logs, standard input is empty, and Ctrl-C is left to the daemon. A failure ends the process with exit status 1 and a
    traceback. A process that threads of yours keep alive is ended by the daemon (`mld.childStopTimeoutMillis`).

    Raises:
        SystemExit: anything has failed.
    """
    stdin, stdout = claim_standard_streams()
    if not os.isatty(stdin.fileno()):
        # Ctrl-C in the daemon's terminal reaches us too; the daemon decides when we are done.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(factory(), stdin, stdout)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None
    finally:
        # The daemon must see the end even if a thread of the processor keeps this process alive.
        for stream in (stdin, stdout):
            with suppress(OSError):
                stream.close()


def _dispatch(processor: RecordProcessor, received: ReceivedAction, checkpointer: Checkpointer) -> None:
    match received.action:
        case Initialize(shard_id, sequence, sub, stream):
            if stream is not None:
                processor.stream = stream
            processor.initialize(shard_id, sequence, sub)
        case ProcessRecords(records, millis_behind_latest):
            processor.process_records(records, checkpointer, millis_behind_latest)
        case ShardEnded():
            processor.shard_ended(checkpointer)
        case ShutdownRequested():
            processor.shutdown_requested(checkpointer)
        case LeaseLost():
            processor.lease_lost()


class _Channel:
    """Whole messages on a pair of byte streams."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def next_action(self) -> ReceivedAction | None:
        """Return the next action; None at the end of input, which is how a daemon says goodbye."""
        line = self._stdin.readline()
        if not line:
            return None
        if not line.endswith(b"\n"):
            raise DaemonError("the daemon went away in the middle of a message")
        message = parse_daemon_line(line)
        if isinstance(message, ReceivedReply):
            raise DaemonError("the daemon sent a checkpoint reply nobody waited for")
        return message

    def ask(self, sequence_number: str | None, sub_sequence_number: int | None) -> str | None:
        """Ask for a checkpoint; the daemon's error name, None for success."""
        self.write(encode_checkpoint_request(sequence_number, sub_sequence_number))
        line = self._stdin.readline()
        if not line.endswith(b"\n"):
            raise DaemonError("the daemon went away while a checkpoint was open")
        message = parse_daemon_line(line)
        if not isinstance(message, ReceivedReply):
            raise DaemonError(f"the daemon sent {message.response_for} in place of a checkpoint reply")
        return message.error

    def write(self, line: bytes) -> None:
        self._stdout.write(line)
        self._stdout.flush()
