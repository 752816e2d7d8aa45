"""`PipeHost`: starts child processes, exchanges lines with them by pipes, and ends them. The real `ProcessorHost`.

Rules: protocol#child-command, protocol#child-outputs, protocol#ending-a-child. The command is split on spaces and
looked up on PATH; there is no shell. The child gets the daemon's environment, a few `MLD_*` variables and a process
group of its own, so that a Ctrl-C at a terminal reaches the daemon and not the child. Every wait for the child has a
time limit. stdin is written while stdout is read, and neither blocks the loop. stderr, and everything unexpected on
stdout, goes to the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

from mld.consumer.child_log import ChildLogger, LoggedLines
from mld.consumer.child_pipes import ChildInput, ChildOutput
from mld.consumer.forked_child import ForkedProcess, fork
from mld.consumer.guard import ChildGuard
from mld.consumer.ports import ChildStartError, ShardAddress
from mld.core.clock import Clock
from mld.core.installed import find_executable
from mld.core.log_fields import about
from mld.core.waits import wait_for_event
from mld.protocol.child_command import shell_command
from mld.protocol.line_splitter import LineSplitter
from mld.protocol.messages import StreamLabel
from mld.retrieval.stream_naming import StreamNaming

log = logging.getLogger(__name__)

UNREAD_LINES_MAX = 1_000  # with more unread lines, stdout is paused; a chatty child only blocks itself
LOGGED_PER_STEP = 50  # lines of stderr that are logged before other tasks run; each takes some 20 us
EOF_AFTER_EXIT_S = 1.0  # how long a grandchild may hold the outputs open after the child's exit
KILL_WAIT_S = 5.0  # a killed process is gone at once, unless the kernel holds it (disk, NFS)
LOGGED_CHARACTERS_PER_STEP = 16 * 1024  # limits a step to fewer lines if they are long, as all are searched for secrets
LAST_WORDS_LINES_MAX = 30  # of stderr, kept for a dead letter: enough for a traceback
LAST_WORDS_CHARS_MAX = 500  # characters kept of each of these lines
LARGE_PIECE_BYTES = 64 * 1024  # before a piece of this size or more is written to stdin, other tasks run
OF_ONE_SHARD = frozenset({"MLD_STREAM_ID", "MLD_LEASE_KEY", "MLD_ANCESTOR_SHARD_IDS"})
"""Environment variables that a child must not inherit. If the daemon itself runs as a child of another daemon, it has
them from there, and they describe another shard."""
EXIT_POLL_S = 0.05  # used only where the system has no pidfd

_START_REMEDIES = {
    errno.EMFILE: "a child takes six of them: raise LimitNOFILE or ulimit -n, or set maxLeasesForWorker",
    errno.ENFILE: "the machine has too many open files: raise fs.file-max, or set maxLeasesForWorker",
    errno.EAGAIN: "there are too many processes: raise LimitNPROC or TasksMax, or set maxLeasesForWorker",
    errno.ENOMEM: "the memory is used up: give the machine more, or set maxLeasesForWorker",
}


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """The command that starts a stream's children, already split, and the source of the variables that name the
    stream.
    """

    command: Sequence[str]
    naming: StreamNaming | None = None
    """Gives the variables that name the stream to the child; None if it needs none."""


class PipeHost:
    """Starts children, and connects them to the daemon by pipes.

    `command` is already split. `stop_timeout_s` bounds each step of ending a child. A child's environment consists of
    the daemon's, `environment`, the variables that name the stream, and those of its shard's address. `of_stream`
    returns the command for the children of a stream; None if all have `command`.
    """

    def __init__(
        self,
        command: Sequence[str],
        clock: Clock,
        *,
        stop_timeout_s: float,
        environment: Mapping[str, str],
        logs_fields: bool = True,
        of_stream: Callable[[StreamLabel | None], ChildCommand] | None = None,
    ) -> None:
        self._common = ChildCommand(list(command))
        self._of_stream = of_stream
        self._clock = clock
        self._stop_timeout_s = stop_timeout_s
        self._environment = dict(environment)
        self._logs_fields = logs_fields
        self._guard = ChildGuard()

    async def start(self, shard: ShardAddress) -> PipeChild:
        """Start a child for a shard, and return it: forked by the fork server if one runs, else by running the command.
        Raises ChildStartError.
        """
        stream = shard.stream
        chosen = self._common if self._of_stream is None else self._of_stream(stream)
        named = await chosen.naming.variables() if chosen.naming else {}
        inherited = {name: value for name, value in os.environ.items() if name not in OF_ONE_SHARD}
        environment = {**inherited, **self._environment, **named, **shard.variables()}
        process = await fork(chosen.command, environment) or _spawn(chosen.command, environment)
        child_log = ChildLogger(
            log,
            "child_stderr",
            shard.key,
            process.pid,
            as_fields=self._logs_fields,
            stream=None if stream is None else stream.name,
            number=shard.child_number if shard.children > 1 else None,
        )
        self._guard.watch(process.pid)
        child = PipeChild(
            process,
            self._clock,
            child_log,
            shard_id=shard.key,
            stop_timeout_s=self._stop_timeout_s,
            on_gone=self._guard.forget,
        )
        try:
            await child.connect()
        except BaseException:
            await child.kill()
            raise
        return child


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the command as a process of its own. Raises ChildStartError."""
    try:
        return _popen(command, environment)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without "#!" is run by a shell, as execvp and Java do
            return _popen(shell_command(find_executable(command) or command[0], command), environment)
        remedy = _START_REMEDIES.get(error.errno or 0, "give a path that exists or a name on the daemon's PATH")
        raise ChildStartError(
            f"cannot start {command[0]!r} (key executableName): {error.strerror or error}; {remedy}"
        ) from error


def _popen(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the command with pipes to its stdin, stdout and stderr, in a process group of its own."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        process_group=0,
        bufsize=0,
    )


class PipeChild:
    """A running child. Created by `PipeHost.start`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes] | ForkedProcess,
        clock: Clock,
        child_log: ChildLogger,
        *,
        shard_id: str,
        stop_timeout_s: float,
        on_gone: Callable[[int], None],
    ) -> None:
        self._process = process
        self._on_gone = on_gone
        self._clock = clock
        self._child_log = child_log
        self._shard_id = shard_id
        self._stop_timeout_s = stop_timeout_s
        self.last_words: deque[str] = deque(maxlen=LAST_WORDS_LINES_MAX)
        self._splitter = LineSplitter()  # of stdout
        self._lines: deque[str] = deque()  # lines of stdout that `read_line` has not returned
        self._line_ready = asyncio.Event()  # wakes the caller of `read_line`
        self._stdout_closed = asyncio.Event()
        self._stderr_closed = asyncio.Event()
        self._exited = asyncio.Event()  # set when the process has exited
        self._sent: signal.Signals | None = None  # the last signal that we sent while the child still ran
        self._errors = LoggedLines()  # splits stderr into lines
        self._unlogged: deque[str] = deque()  # lines of stderr
        self._is_rest_scheduled = False  # whether `_log_rest` is scheduled to log the rest of `_unlogged`
        self._is_stderr_over = False  # whether stderr has ended
        self._ending = False  # once True, nobody reads the child's lines any more, and all of them are logged
        assert process.stdin and process.stdout and process.stderr
        self._stdin = ChildInput(process.stdin)
        self._stdout = ChildOutput(process.stdout, self._stdout_bytes, self._stdout_eof)
        self._stderr = ChildOutput(process.stderr, self._stderr_bytes, self._stderr_eof)
        self._exit_watch: Callable[[], None] | None = None  # stops the watch for the exit; None if none runs
        self._eof_timer: asyncio.TimerHandle | None = None  # until when the outputs may stay open after the exit

    @property
    def description(self) -> str:
        return f"pid {self._process.pid}"

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None if the child runs, or if we have ended it by a signal."""
        return None if self._sent else self._process.returncode

    async def connect(self) -> None:
        """Attach the outputs and the exit watch to the running loop."""
        await self._stdout.connect()
        await self._stderr.connect()
        self._watch_exit(asyncio.get_running_loop())

    # --- stdin -------------------------------------------------------------------------------------------------------

    def begin_write(self, pieces: Iterable[bytes]) -> asyncio.Future[None] | None:
        """Write all pieces to stdin in order, without blocking the loop. Return None if the pipe has taken them at
        once, else a future (`ports.ChildProcess.begin_write`).

        Small pieces are written at once, as long as the pipe takes them. A task (`write`) is started for the rest as
        soon as the pipe is full, or a piece is large or empty (`A_TURN`): before such a piece other tasks must run.
        """
        left = iter(pieces)
        for piece in left:
            needs_task = not piece or len(piece) >= LARGE_PIECE_BYTES
            rest = piece if needs_task else self._stdin.write_now(piece)
            if needs_task or rest:
                return asyncio.ensure_future(self.write(chain((rest,), left)))
        return None

    async def write(self, pieces: Iterable[bytes | memoryview]) -> None:
        """Write all pieces in order without blocking the loop. Let other tasks run before a large piece, and for an
        empty one (`A_TURN`). Raises BrokenPipeError.
        """
        for piece in pieces:
            if not piece or len(piece) >= LARGE_PIECE_BYTES:
                await asyncio.sleep(0)  # framing and copying a large piece takes some 0.2 ms; let other tasks run
            if piece:
                await self._stdin.write(piece)

    def close_input(self) -> None:
        self._stdin.close()

    # --- stdout ------------------------------------------------------------------------------------------------------

    async def read_line(self) -> str | None:
        """Wait for the next line of stdout, and return it; None if no more can come. Taking a line may make room, and
        then stdout is read again.
        """
        while not self._lines:
            if self._stdout_closed.is_set():
                return None
            self._line_ready.clear()
            await self._line_ready.wait()
        line = self._lines.popleft()
        if len(self._lines) < UNREAD_LINES_MAX:
            self._stdout.resume()
        return line

    def take_unread(self) -> list[str]:
        """Remove and return the lines of stdout that `read_line` has not returned yet. Stdout is read again if it was
        paused.
        """
        lines = list(self._lines)
        self._lines.clear()
        self._stdout.resume()
        return lines

    def _stdout_bytes(self, data: bytes) -> None:
        """Split bytes of the child into lines. Reading stops while many lines wait, so that memory stays bounded."""
        if self._stdout_closed.is_set():  # these bytes come from a grandchild, see `_if_held`
            return
        self._add_lines(self._splitter.feed(data))
        if self._ending:
            self._log_unread()
        elif len(self._lines) >= UNREAD_LINES_MAX:
            self._stdout.pause()

    def _stdout_eof(self) -> None:
        """Note that the child's stdout has ended; a last line without a line end still counts."""
        if self._stdout_closed.is_set():
            return
        self._add_lines(self._splitter.eof())
        self._stdout_closed.set()
        self._line_ready.set()

    def _add_lines(self, lines: Iterable[str]) -> None:
        """Queue lines of stdout, and wake the caller of `read_line`."""
        self._lines.extend(lines)
        if self._lines:
            self._line_ready.set()

    # --- stderr ------------------------------------------------------------------------------------------------------

    def _stderr_bytes(self, data: bytes) -> None:
        """Split bytes of stderr into lines, and log them."""
        self._unlogged.extend(self._errors.feed(data))
        self._log_some()

    def _stderr_eof(self) -> None:
        """Note that stderr has ended, and log its last line."""
        self._unlogged.extend(self._errors.eof())
        self._is_stderr_over = True
        self._log_some()

    def _log_some(self) -> None:
        """Log some of the waiting lines of stderr, and the rest in later turns of the loop, because one read may bring
        thousands. Reading of stderr is paused until all of them are logged.
        """
        characters = 0
        for _ in range(min(LOGGED_PER_STEP, len(self._unlogged))):
            if line := self._unlogged.popleft():
                self.last_words.append(line[:LAST_WORDS_CHARS_MAX])
                self._child_log.log(line)
                characters += len(line)
                if characters > LOGGED_CHARACTERS_PER_STEP:
                    break
        if self._unlogged:
            self._stderr.pause()
            if not self._is_rest_scheduled:
                self._is_rest_scheduled = True
                asyncio.get_running_loop().call_soon(self._log_rest)
        elif self._is_stderr_over:
            self._stderr_closed.set()
        else:
            self._stderr.resume()

    def _log_rest(self) -> None:
        """Continue to log waiting lines, in a later turn of the loop."""
        self._is_rest_scheduled = False
        self._log_some()

    # --- the end -----------------------------------------------------------------------------------------------------

    async def end(self) -> str:
        """Close stdin and wait for the exit; then send TERM, and then KILL. Return how the child ended. Each of the two
        waits, after closing stdin and after TERM, lasts at most the stop timeout. If cancelled, kill at once.
        """
        self.close_input()
        try:
            if not await self._gone_within(self._stop_timeout_s):
                self._end_by(signal.SIGTERM)
                if not await self._gone_within(self._stop_timeout_s):
                    return await self.kill()
        except asyncio.CancelledError:
            self._signal_group(signal.SIGKILL)
            self._close()
            raise
        return self._closed_status()

    async def kill(self) -> str:
        """Kill the process group now, and return how the child ended. Waits at most `KILL_WAIT_S`."""
        self._end_by(signal.SIGKILL)
        await self._gone_within(KILL_WAIT_S)
        return self._closed_status()

    def _end_by(self, number: signal.Signals) -> None:
        """Send a signal to the process group. If the child still runs, remember that the signal ended it."""
        if self._process.poll() is None:
            self._sent = number
        self._signal_group(number)

    async def _gone_within(self, timeout_s: float) -> bool:
        """Wait for the process to exit, and then for the end of its outputs. Return False if it does not exit within
        the time. `_on_exit` limits the wait for the outputs.
        """
        self._ending = True
        self._log_unread()
        if not await wait_for_event(self._exited, timeout_s):
            return False
        await self._stdout_closed.wait()
        await self._stderr_closed.wait()
        self._log_unread()
        return True

    def _log_unread(self) -> None:
        """Take the lines of stdout that `read_line` has not returned, so that the child never waits for a full pipe.
        Log them if the level is DEBUG.
        """
        lines = self.take_unread()
        if not log.isEnabledFor(logging.DEBUG):
            return
        for line in lines:
            if line:
                log.debug("drained: %s", line[:500], extra=about("child_drained", self._shard_id))

    def _signal_group(self, number: signal.Signals) -> bool:
        """Send a signal to the child's process group. Return False if the group is empty, or we may not signal it."""
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _closed_status(self) -> str:
        """Release everything that belongs to the process, and return a text that says how it ended."""
        self._close()
        code = self._process.returncode
        if code is None:
            return f"{self.description} did not go away after SIGKILL"
        if code < 0:
            whose = "mld's " if self._sent == -code else ""
            return f"{self.description} ended by {whose}{signal.Signals(-code).name}"
        return f"{self.description} exited with status {code}"

    def _close(self) -> None:
        """Close the pipes and stop watching the process. If the process has exited, report that to the host."""
        if self._eof_timer is not None:
            self._eof_timer.cancel()
        if self._exit_watch is not None:
            self._exit_watch()
            self._exit_watch = None
        if self._process.poll() is not None:
            self._on_gone(self._process.pid)
        self.close_input()
        self._close_outputs()

    # --- exit watch --------------------------------------------------------------------------------------------------

    def _watch_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `_on_exit` called when the process exits: by its pidfd, or by polling where the system has no pidfd."""
        try:
            process = self._process
            handle = process.exit_handle() if isinstance(process, ForkedProcess) else os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            task = loop.create_task(self._poll_exit())
            self._exit_watch = lambda: cast("None", task.cancel())
            return

        def stop() -> None:
            loop.remove_reader(handle)
            os.close(handle)

        loop.add_reader(handle, self._on_exit)
        self._exit_watch = stop

    async def _poll_exit(self) -> None:
        """Check at short intervals whether the process has exited, and then call `_on_exit`. Used where the system has
        no pidfd.
        """
        while self._process.poll() is None:
            await self._clock.sleep(EXIT_POLL_S)
        self._exit_watch = None
        self._on_exit()

    def _on_exit(self) -> None:
        """Note that the process has exited, close its stdin, and begin to wait for the end of its outputs."""
        if self._process.poll() is None:
            return
        if self._exit_watch is not None:
            self._exit_watch()
            self._exit_watch = None
        self._exited.set()
        self.close_input()  # so that no write waits for a grandchild to read
        self._let_outputs_end(self._end_group)

    # --- grandchildren that keep the outputs open --------------------------------------------------------------------
    #
    # The outputs normally end with the child. But a grandchild may have inherited them, and we do not wait for it: if
    # it stayed in the child's process group, it is ended; if it is detached, our ends of its pipes are closed.

    def _let_outputs_end(self, otherwise: Callable[[], None]) -> None:
        """Give the outputs some time to end; if one is still open then, call `otherwise`."""
        self._eof_timer = asyncio.get_running_loop().call_later(EOF_AFTER_EXIT_S, self._if_held, otherwise)

    def _if_held(self, otherwise: Callable[[], None]) -> None:
        """Call `otherwise` if a grandchild still holds an output open. Lines that come from now on are ignored."""
        self._stdout_eof()  # the child has exited, and a grandchild must not answer in its place
        if self._stdout.is_open or self._stderr.is_open:
            otherwise()

    def _end_group(self) -> None:
        """Ask the grandchildren in the process group to end. If the group is empty, close the outputs."""
        if self._signal_group(signal.SIGTERM):
            self._let_outputs_end(self._kill_group)
        else:
            self._close_outputs()

    def _kill_group(self) -> None:
        """Kill the grandchildren in the process group, and close our ends of the outputs."""
        self._signal_group(signal.SIGKILL)
        self._close_outputs()

    def _close_outputs(self) -> None:
        self._stdout.close()
        self._stderr.close()
