"""A small base class for record processors written in Python, and the loop that answers the daemon's messages.

Rules: protocol#processor-base-class, protocol#child-messages, protocol#checkpoint-errors. A program is a subclass and
one line::

    if __name__ == "__main__":
        run(MyProcessor)

This module must never:

- send a status for work that failed: an exception in your code ends the process, and the daemon starts a new one and
  delivers the records again;
- let a stray `print` into the protocol: standard output goes to standard error;
- take long to import.
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
"""With the delays below a checkpoint fails after at most 16 s, well within a usual time limit per message."""
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
    """Asks the daemon to store checkpoints.

    It shares standard input with the loop that calls the processor. So use it only while a method of the processor
    runs, and only on the thread of that method. If threads of your own work on records, wait for them before you
    checkpoint these records.
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
        """Store a checkpoint: everything up to and including `at` is done. Return once it is stored.

        `at` is a record or a sequence number; None means everything delivered so far. A sequence number without
        `sub_sequence_number` means its first sub-record, so prefer to pass the record. The call blocks. If the lease
        table is throttled or fails, the daemon is asked up to six times, 0.25 to 8 s apart, for at most 16 s.

        Raises:
            ShutdownError: the lease is lost.
            ThrottlingError: after all retries.
            DependencyError: after all retries.
            InvalidStateError: the lease table is missing, or no checkpoint is possible now.
            InvalidPositionError: the position was not delivered, or is before the last checkpoint.
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
            # Half of the delay is random, so that shards that were throttled together do not retry together.
            self._sleep(min(RETRY_DELAY_MAX_S, RETRY_BASE_S * 2 ** (attempt - 1)) * self._rng.uniform(0.5, 1.0))


class RecordProcessor(ABC):
    """The base class of your processor. A process has one processor object, and serves one shard.

    All methods are called one after the other, on the thread that called `run`. The daemon waits for each as long as it
    takes, unless `timeoutInSeconds` is set. An exception from any of them ends the process; the daemon starts another,
    which gets the records after the last checkpoint again. ShutdownError is the exception: it ends only the work.
    """

    stream: StreamLabel | None = None
    """The shard's stream, set before `initialize` if the application reads several streams (`mld.streams`)."""

    # Not abstract, because many processors have nothing to prepare.
    def initialize(self, shard_id: str, sequence_number: str | None, sub_sequence_number: int | None) -> None:  # noqa: B027
        """Begin the shard. This is the first call.

        The sequence number is that of the last checkpoint, or a sentinel such as TRIM_HORIZON.
        """

    @abstractmethod
    def process_records(
        self, records: Sequence[Record], checkpointer: Checkpointer, millis_behind_latest: int | None
    ) -> None:
        """Process a batch. After it returns, the next batch may come. A return is not a checkpoint.

        `millis_behind_latest` is how far the end of the batch is behind the tip of the shard; None if unknown.
        """

    @abstractmethod
    def shard_ended(self, checkpointer: Checkpointer) -> None:
        """Finish a shard that has no more records: end all work, then call `checkpointer.checkpoint()`.

        The child shards begin only after this checkpoint. To return without it is an error, and the shard is delivered
        again from its last checkpoint.
        """

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:  # noqa: B027
        """Finish and checkpoint: the shard will move to another worker, or the daemon will stop.

        Doing nothing is safe.
        """

    def lease_lost(self) -> None:  # noqa: B027
        """Stop without a checkpoint: another worker has the shard and may already work on it. This is the last call."""


def serve(
    processor: RecordProcessor,
    stdin: BinaryIO,
    stdout: BinaryIO,
    *,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> None:
    """Answer a daemon's messages until the end of `stdin`. Call it yourself to test a processor without a daemon.

    An exception of the processor, except ShutdownError, passes to the caller, and no status is sent.

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
                # Another worker has the shard: answer further messages without calling the processor.
                lost = True
        channel.write(encode_status(received.response_for))


def run(factory: Callable[[], RecordProcessor]) -> None:
    """Serve the daemon on standard input and output, until it is done. Call it in the last line of your program.

    `factory`, usually your class, makes the processor. From here on `print` goes to standard error, which the daemon
    logs, standard input is empty, and Ctrl-C is left to the daemon. A failure ends the process with exit status 1 and a
    traceback. If threads of yours keep the process alive, the daemon ends it after `mld.childStopTimeoutMillis`.

    Raises:
        SystemExit: the processor or the daemon failed.
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
        # The daemon must see these streams closed even if a thread of the processor keeps this process alive.
        for stream in (stdin, stdout):
            with suppress(OSError):
                stream.close()


def _dispatch(processor: RecordProcessor, received: ReceivedAction, checkpointer: Checkpointer) -> None:
    """Call the method of the processor that belongs to the action."""
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
    """Sends and receives whole messages on a pair of byte streams."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._stdin = stdin
        self._stdout = stdout

    def next_action(self) -> ReceivedAction | None:
        """Return the next action; None at the end of input, by which the daemon shows that it is done."""
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
        """Ask for a checkpoint. Return the daemon's error name, or None if the checkpoint is stored."""
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
