"""`WorkerGroup`: the supervisor process of a group. It starts the workers, and restarts each one that dies.

For its workers it takes the place of the service manager: each worker has a notify socket, and sends to it what it
would send to systemd. The supervisor uses no stream and no table. `Membership` is what a worker knows of the group.

*The fence of a dead worker.* When a worker has ended, the supervisor reports this to the other workers, together with a
time on the clock of this machine: until then no process will run under the dead worker's name. So lease rows of that
name that are read before this time were written by the dead process, and the others may take these leases without
waiting for the lease duration. As always, they write a row only if it is still as they have read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mld.core.error_boundary import survived
from mld.core.terminal import EXIT_FAILURE
from mld.core.waits import wait_for_event
from mld.daemon.group_membership import DEFINED, LIFELINE, PAGES, WORKER, news_of_end
from mld.daemon.group_rules import FENCE_S, STEADY_S, end_in_words, exit_code, group_end, restart_pause_s, worker_names
from mld.daemon.signals import SIGNAL_ECHO_S, HangUp
from mld.daemon.systemd import KEEPALIVES_PER_WATCHDOG, SOCKET, WATCHDOG_MICROS, ServiceManager

log = logging.getLogger(__name__)

DATAGRAM_BYTES_MAX = 4096
TICK_S = 1.0
"""Longest time between two checks of the workers (`WorkerGroup._tick`)."""
EXTEND = b"EXTEND_TIMEOUT_USEC="


@dataclass(slots=True)
class GroupMember:
    """A worker of the group. If its process dies, the next process runs under the same name."""

    name: str
    pages: Path
    """Socket where the supervisor asks for the worker's pages."""
    notify: Path
    """Socket where the worker notifies the supervisor."""
    process: asyncio.subprocess.Process | None = None
    """None while no process runs."""
    lifeline: socket.socket | None = None
    """Our end of a socket whose other end the process has. We send news on it; if it closes, because we have ended, the
    process stops (see `Membership`)."""
    is_begun: bool = False
    """Whether a process runs or is being started; it may notify us before `process` is set."""
    notified: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first notification: the worker has read its properties file without an error."""
    is_ready: bool = False
    status: str = "starting"
    alive_at: float = 0.0
    """Monotonic time of the last notification."""
    is_aborted: bool = False
    """Whether the worker hung and was sent SIGABRT, so that its log shows where it hangs."""
    started_at: float = 0.0
    failures: int = 0
    """Failures in a row."""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What a group runs."""

    command: Sequence[str]
    """The command that starts a worker."""
    name: str
    """Worker ids begin with this name."""
    count: int
    definitions: Sequence[str]
    """The `key=value` options of the command line."""
    environ: Mapping[str, str]


class WorkerGroup:
    """Starts the workers, keeps them running, and stops them all together."""

    def __init__(self, plan: GroupPlan, place: Path, manager: ServiceManager) -> None:
        """Make a group; `place` is a directory that only this user can enter."""
        self._plan = plan
        self._manager = manager
        names = worker_names(plan.name, plan.count)
        self.workers = [GroupMember(name, place / f"{n}.pages", place / f"{n}.notify") for n, name in enumerate(names)]
        self._stop = asyncio.Event()
        self._code = 0
        """The exit code of the group: that of the first worker that failed."""
        self._was_ready = False
        """Whether all workers were ready at the same time once."""
        self._signalled_at: float | None = None
        """When the last signal came (monotonic)."""
        self._status = ""
        """The status that the service manager was sent last."""

    async def run(self, hang_up: HangUp) -> int:
        """Run until all workers have been stopped, or one ends before all have become ready; return the exit code."""
        self._handle_signals(hang_up)
        with contextlib.ExitStack() as stack:
            for worker in self.workers:
                stack.enter_context(self._listening(worker))
            ticking = asyncio.create_task(self._tick())
            try:
                await self._keep_all()
            finally:
                ticking.cancel()
        return self._code

    def _handle_signals(self, hang_up: HangUp) -> None:
        """Stop the group at SIGTERM and SIGINT, and do at SIGHUP what `hang_up` says."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if hang_up is HangUp.STOP:
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)
        elif hang_up is HangUp.RELOAD:
            loop.add_signal_handler(signal.SIGHUP, self._reload)

    async def _keep_all(self) -> None:
        """Keep all workers running. The others start once the first has read the properties file, so that an error in
        the file is logged only once.
        """
        first, *others = self.workers
        keeping = [asyncio.create_task(self._keep(first))]
        notified = asyncio.create_task(first.notified.wait())
        await asyncio.wait([keeping[0], notified], return_when=asyncio.FIRST_COMPLETED)
        notified.cancel()
        keeping += [asyncio.create_task(self._keep(worker)) for worker in others if not self._stop.is_set()]
        await asyncio.gather(*keeping)

    # --- one worker ---------------------------------------------------------------------------------------------------

    async def _keep(self, worker: GroupMember) -> None:
        """Run the worker, and start it again whenever it ends, until the group stops. If it ends before all workers of
        the group have been ready once, the whole group stops (`group_end`).
        """
        while not self._stop.is_set():
            code = await self._run_once(worker)
            if self._stop.is_set():
                self._code = self._code or exit_code(code)
                return
            end = group_end(code, was_ready=self._was_ready)
            if end is not None:
                self._end(end)
                return
            # The pause before the restart grows with each failure in a row; a long run begins a new row.
            worker.failures = 1 if time.monotonic() - worker.started_at > STEADY_S else worker.failures + 1
            pause_s = restart_pause_s(worker.failures)
            worker.status = f"{end_in_words(code)}; starts again in {pause_s:.0f} s"
            log.error(
                "worker %s %s; its shards go to the others, and it starts again in %.0f s",
                worker.name,
                end_in_words(code),
                pause_s,
                extra={"action": "worker_restarts", "worker": worker.name, "exit_code": code},
            )
            worker.restarts += 1
            await wait_for_event(self._stop, pause_s)

    async def _run_once(self, worker: GroupMember) -> int:
        """Start a process of the worker with a lifeline, wait until it ends, and return its exit code."""
        our_end, worker_end = socket.socketpair()
        with our_end, worker_end:
            try:
                await self._spawn(worker, worker_end.fileno())
            except OSError as error:
                log.error("worker %s cannot be started: %s", worker.name, error, extra={"action": "spawn_failed"})
                worker.is_begun = False
                return EXIT_FAILURE
            assert worker.process is not None
            worker_end.close()  # the process has inherited its own copy
            our_end.setblocking(False)
            if self._stop.is_set():  # the group was stopped while the process was being started
                _send(worker, signal.SIGTERM)
            worker.lifeline = our_end
            try:
                return await worker.process.wait()
            finally:
                worker.process, worker.lifeline, worker.is_begun, worker.is_ready = None, None, False, False
                self._report_end(worker)

    async def _spawn(self, worker: GroupMember, lifeline: int) -> None:
        """Start a process of the worker, which inherits the descriptor `lifeline`. Raises OSError."""
        worker.pages.unlink(missing_ok=True)
        worker.status, worker.is_ready, worker.is_aborted = "starting", False, False
        worker.started_at = worker.alive_at = time.monotonic()
        worker.is_begun = True
        # In a process group of its own: a signal to our group reaches the worker only once, through us.
        worker.process = await asyncio.create_subprocess_exec(
            *self._plan.command, env=self._environ(worker, lifeline), pass_fds=(lifeline,), process_group=0
        )

    def _environ(self, worker: GroupMember, lifeline: int) -> dict[str, str]:
        """Return the environment of a worker's process, with its name, its sockets and its lifeline."""
        environ = {
            **self._plan.environ,
            LIFELINE: str(lifeline),
            WORKER: worker.name,
            PAGES: str(worker.pages),
            DEFINED: json.dumps(list(self._plan.definitions)),
            SOCKET: str(worker.notify),
        }
        if self._manager.keepalive_s is not None:  # then the worker sends signs of life as often as this process does
            micros = self._manager.keepalive_s * KEEPALIVES_PER_WATCHDOG * 1e6
            environ[WATCHDOG_MICROS] = str(round(micros))
        return environ

    def _report_end(self, dead: GroupMember) -> None:
        """Report to the other workers that this one has ended, and until when no process will run under its name (the
        *fence* at the top of this module).

        Call it only after the worker's process has been waited for.
        """
        news = news_of_end(dead.name, time.monotonic() + FENCE_S)
        for worker in self.workers:
            _send_news(worker, news)

    # --- notifications of workers -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _listening(self, worker: GroupMember) -> Iterator[None]:
        """Listen to the worker's notifications."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as inbox:
            inbox.bind(str(worker.notify))
            worker.notify.chmod(0o600)
            loop.add_reader(inbox, self._on_notification, worker, inbox)
            try:
                yield
            finally:
                loop.remove_reader(inbox)

    def _on_notification(self, worker: GroupMember, inbox: socket.socket) -> None:
        """Read one notification of the worker, and act on it as systemd would."""
        try:
            datagram = inbox.recv(DATAGRAM_BYTES_MAX)
        except OSError:
            return
        if not worker.is_begun:
            return  # the process that sent it has ended
        worker.notified.set()
        worker.alive_at = time.monotonic()
        for line in datagram.split(b"\n"):
            if line == b"READY=1":
                worker.is_ready = True
            elif line.startswith(b"STATUS="):
                worker.status = line[7:].decode(errors="replace")
            # A worker that needs more time to start or stop: ask the service manager for as much.
            elif line.startswith(EXTEND) and (not self._was_ready or self._stop.is_set()):
                within_s = int(line.partition(b"=")[2]) / 1e6
                ask_for_time = self._manager.stopping if self._stop.is_set() else self._manager.starting
                ask_for_time(within_s)
        if not self._was_ready and all(member.is_ready for member in self.workers):
            self._was_ready = True
            self._manager.ready()
            log.info("all %d workers run", len(self.workers), extra={"action": "unit_ready"})

    # --- signs of life ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Send the service manager a status and a sign of life every second, and end workers that hang."""
        while True:
            try:
                self._send_status()
                self._end_hanging()
            except Exception as error:
                survived(error, "looking after the workers")
            await asyncio.sleep(min(TICK_S, self._manager.keepalive_s or TICK_S))

    def _send_status(self) -> None:
        """Report to the service manager how many workers run, and in which state each is, whenever this changes."""
        running = sum(worker.is_ready for worker in self.workers)
        texts = "; ".join(f"{number}: {worker.status}" for number, worker in enumerate(self.workers, 1))
        status = f"{running} of {len(self.workers)} workers run. {texts}"
        if status != self._status:
            self._status = status
            self._manager.status(status)

    def _end_hanging(self) -> None:
        """Send our own sign of life to the service manager. End workers that have sent us none for too long: such a
        worker gets SIGABRT, and SIGKILL if it still runs after as long again.

        Does nothing if the service manager expects no signs of life.
        """
        keepalive_s = self._manager.keepalive_s
        if keepalive_s is None:
            return
        self._manager.alive()
        limit_s = keepalive_s * KEEPALIVES_PER_WATCHDOG
        for worker in self.workers:
            is_watched = worker.process is not None and worker.is_ready  # systemd, too, watches a unit once it is ready
            if is_watched and time.monotonic() - worker.alive_at > limit_s:
                fields = {"action": "worker_hangs", "worker": worker.name}
                log.error("worker %s gave no sign of life for %.0f s: ended", worker.name, limit_s, extra=fields)
                worker.alive_at = time.monotonic()
                _send(worker, signal.SIGKILL if worker.is_aborted else signal.SIGABRT)
                worker.is_aborted = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        """End the group. A second signal within `SIGNAL_ECHO_S` is taken for an echo of the first one."""
        now = time.monotonic()
        if self._signalled_at is not None and now - self._signalled_at < SIGNAL_ECHO_S:
            return
        log.info("%s received", number.name, extra={"action": "signal"})
        self._signalled_at = now
        self._end(0)

    def _end(self, code: int) -> None:
        """End the group: restart no worker from now on, and send SIGTERM to all of them. The SIGTERM of the first call
        lets a worker stop gracefully; that of a second call ends it at once.

        `code` is the exit code of the group, unless an earlier code that is not 0 was kept.
        """
        self._code = self._code or code
        self._stop.set()
        for worker in self.workers:
            _send(worker, signal.SIGTERM)

    def _reload(self) -> None:
        """Have the workers read their file again, except those that are starting: they have just read it, and may not
        handle SIGHUP yet.
        """
        self._manager.reloading(time.monotonic())
        for worker in self.workers:
            if worker.is_ready:
                _send(worker, signal.SIGHUP)
        self._manager.ready()  # ends the state "reloading"; the workers may still be reading


def _send_news(worker: GroupMember, news: bytes) -> None:
    """Send a line on the worker's lifeline, if its process runs."""
    if worker.lifeline is not None:
        with contextlib.suppress(OSError):  # that worker has ended as well, or does not read its lifeline
            worker.lifeline.send(news)


def _send(worker: GroupMember, number: signal.Signals) -> None:
    """Send a signal to the worker's process, if it runs."""
    if worker.process is not None:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(number)
