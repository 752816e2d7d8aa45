"""`DecoderProcess`: has payloads decoded by a process that runs `decoder`, and starts a new one if a record ends it.

Rules: retrieval#decoding-in-a-process. One process serves all shards of a worker. Calls are served one after another.
If a record ends the process, the remaining payloads of that call are decoded only after the calls that wait. So a shard
with many such records takes turns with the other shards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mld.schemas.decoder import (
    ANSWER,
    DONE,
    PAYLOAD,
    REQUEST,
    SCHEMA,
    SCHEMAS_MAX,
    ZLIB_BIT,
)
from mld.schemas.frame import PAYLOAD_BYTES_MAX, UndecodableError

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0  # reached only by a process that does not run; the kernel ends a busy one much earlier
TRIES = 2  # not one: something else may have ended the process at first, such as a kernel that is short of memory
READ_BYTES = 256 * 1024
ANSWER_BYTES_MAX = PAYLOAD_BYTES_MAX // 3 * 4 + 4
PACKAGES = Path(__file__).resolve().parents[2]
INHERITED = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")  # environment variables; none has secrets


class DecoderJob(NamedTuple):
    """A payload in base64, without its schema frame. `definition` is its Avro schema, if it is to become JSON."""

    text: bytes
    is_compressed: bool
    definition: str | None = None


class DecoderRequests:
    """Makes the requests to one process. Each schema is sent once, before the first payload that needs it. Pure."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, job: DecoderJob) -> list[bytes]:
        """Return the request for this job, as pieces of bytes. A schema is sent only once and gets a number; later
        requests name that number.
        """
        number, pieces = 0, []
        if job.definition is not None:
            number = self._numbers.get(job.definition, 0)
            if not number:
                if len(self._numbers) == SCHEMAS_MAX:
                    self._numbers.clear()  # count from 1 again: a number sent again gets its new schema
                number = self._numbers[job.definition] = len(self._numbers) + 1
                text = job.definition.encode(errors="replace")
                pieces += [REQUEST.pack(SCHEMA, number, len(text)), text]
        flags = ZLIB_BIT if job.is_compressed else 0
        return [*pieces, REQUEST.pack(PAYLOAD, number | flags, len(job.text)), job.text]


class DecoderAnswers:
    """Parses the answers of one decoder process. Pure."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.took_s = 0.0
        """CPU seconds of all answers, and of the work between them."""
        self.excess_s = 0.0
        """CPU seconds that payloads took beyond what is usual for their size."""

    def feed(self, piece: bytes) -> Iterator[bytes | UndecodableError]:
        """Yield the answers that this piece completes, and add up the times that they report (`took_s`, `excess_s`).
        Raises EOFError if the bytes cannot come from the decoder.
        """
        rest = self._rest
        rest += piece
        start = 0
        while len(rest) - start >= ANSWER.size:
            kind, size, took, excess = ANSWER.unpack_from(rest, start)
            if size > ANSWER_BYTES_MAX:
                raise EOFError(f"an answer of {size} bytes")
            end = start + ANSWER.size + size
            if end > len(rest):
                break
            body = bytes(rest[start + ANSWER.size : end])
            self.took_s += took / 1e6
            self.excess_s += excess / 1e6
            yield body if kind == DONE else UndecodableError(body.decode(errors="replace"))
            start = end
        del rest[:start]


@dataclass(slots=True)
class _RunningDecoder:
    """A running decoder process, and the daemon's side of its pipe."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: DecoderRequests
    cpu_s: float = 0.0
    """CPU seconds up to the last answer, without those of the start."""


class DecoderProcess:
    """Decodes payloads in a process, which is started for the first payload. Call `close` at the end."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: _RunningDecoder | None = None

    @property
    def pid(self) -> int | None:
        """Id of the process; None if none is running."""
        return None if self._running is None else self._running.process.pid

    async def decode(
        self, jobs: Sequence[DecoderJob], may_go_on: Callable[[float], bool] = lambda _: True
    ) -> list[bytes | UndecodableError]:
        """Return for each job the decoded payload in base64, or the error that says why it cannot be decoded.

        `may_go_on(seconds)` is called with the CPU seconds that payloads took beyond what is usual for their size, as
        soon as these are answered, and with the CPU seconds of a process that a payload has ended. If it returns False,
        the jobs that are left are not done, and the result is shorter.
        """
        found: list[bytes | UndecodableError] = []
        tries = 0
        while len(found) < len(jobs):
            before = len(found)
            async with self._turn:
                try:
                    await self._decode_more(jobs, found, may_go_on)
                    return found
                except (OSError, EOFError, TimeoutError) as error:
                    why, is_final, cost_s = self._end(error)
                except BaseException:
                    self._end(None)
                    raise
            # The first job without an answer has ended the process. After TRIES such ends it gets an error as its
            # answer.
            tries = 1 if len(found) > before else tries + 1
            log.debug("a record has ended the decoder: %s", why, extra={"action": "decoder_ended"})
            if is_final or tries == TRIES:
                found.append(UndecodableError(why))
                tries = 0
            if not may_go_on(cost_s):
                break
        return found

    async def _decode_more(
        self,
        jobs: Sequence[DecoderJob],
        found: list[bytes | UndecodableError],
        may_go_on: Callable[[float], bool],
    ) -> None:
        """Send the jobs that are not answered yet, and append their answers to `found`, as long as `may_go_on` returns
        True. It gets the CPU seconds that the new answers took beyond what is usual (see `decode`). Raises OSError,
        EOFError or TimeoutError if the process ends or hangs.
        """
        running = self._running or await self._start()
        sending = asyncio.create_task(_send(running, jobs[len(found) :]))
        answers = DecoderAnswers()
        reported_s = 0.0
        try:
            while len(found) < len(jobs):
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    piece = await running.reader.read(READ_BYTES)
                if not piece:
                    raise EOFError
                found.extend(answers.feed(piece))
                more_s, reported_s = answers.excess_s - reported_s, answers.excess_s
                if more_s and not may_go_on(more_s) and len(found) < len(jobs):
                    self._end(None)  # the process would go on with the next payload, while other shards wait for it
                    return
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
            running.cpu_s += answers.took_s

    async def _start(self) -> _RunningDecoder:
        """Start a process, and connect to it by a socket pair. The process comes last: nothing after it can fail."""
        our_end, decoder_end = socket.socketpair()
        with decoder_end:
            try:
                reader, writer = await asyncio.open_connection(sock=our_end)
            except BaseException:
                our_end.close()
                raise
            try:
                process = _spawn(decoder_end.fileno())
            except BaseException:
                writer.close()
                raise
        self._running = _RunningDecoder(process, reader, writer, DecoderRequests())
        return self._running

    def _end(self, error: BaseException | None) -> tuple[str, bool, float]:
        """End the process. Return why it gave no answer, whether another try would be useless, and the CPU seconds that
        it took for its start and since its last answer.
        """
        running, self._running = self._running, None
        if running is None:
            return f"the decoder cannot be started: {error}", True, 0.0
        running.writer.close()
        code, cpu_s = _killed(running.process)
        cost_s = max(0.0, cpu_s - running.cpu_s)
        if code == -signal.SIGPROF:
            return "decoding it takes more CPU time than a record of its size may take", True, cost_s
        return f"decoding it ended the decoder ({_name_of(code)})", False, cost_s

    def close(self) -> None:
        """End the process if it is running."""
        self._end(None)


def _killed(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """Kill the process unless it has ended. Return its exit code, and the CPU seconds that it has taken."""
    try:
        # Not `Popen.kill`: it first calls `poll`, which would reap an ended process and lose the CPU time that it took.
        os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
    except (ProcessLookupError, ChildProcessError):  # somebody else has waited for it
        return process.wait(), 0.0
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _spawn(connection: int) -> subprocess.Popen[bytes]:
    """Start the decoder with the connection as its stdin and stdout, and only the variables of `INHERITED`."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join([str(PACKAGES), *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "mld.schemas.decoder"],
        stdin=connection,
        stdout=connection,
        stderr=subprocess.DEVNULL,
        env=environment,
        process_group=0,
    )


async def _send(running: _RunningDecoder, jobs: Sequence[DecoderJob]) -> None:
    """Send the requests for these jobs to the process, as fast as it takes them."""
    for job in jobs:
        running.writer.writelines(running.requests.of(job))
        await running.writer.drain()


def _name_of(code: int) -> str:
    """Return the signal or the exit code by which a process ended, in words."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"exit code {code}"
