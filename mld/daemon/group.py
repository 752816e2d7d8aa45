"""`mld run` with more than one worker: a process that starts them, and starts again those that die.

To a worker it is the service manager: each worker has a notify socket of its own, on which it sends what it would send
to systemd. The group touches no stream and no table. A worker knows the group as its `Membership`.

*The fence of a dead worker.* The supervisor tells the other workers when one has ended, with a time on the clock of
this machine before which it starts no process under that name, whatever happens. Rows that were read before that time
were written by the dead process, so the others may take them without waiting for the lease duration; their writes are
conditional on what they read, as always.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from mld.core.error_boundary import survived
from mld.core.errors import MldError, StartupError
from mld.core.terminal import EXIT_CONFIGURATION, EXIT_FAILURE
from mld.core.waits import wait_for_event
from mld.core.whereabouts import new_worker_id
from mld.daemon.group_membership import DEFINED, LIFELINE, PAGES, WORKER, news_of_end
from mld.daemon.signals import EXIT_SIGNAL_BASE, SIGNAL_ECHO_S, HangUp, hang_up_here, warn_without_init
from mld.daemon.systemd import KEEPALIVES_PER_WATCHDOG, SOCKET, WATCHDOG_MICROS, ServiceManager, claim_manager
from mld.properties.settings import Settings
from mld.properties.values import ONE_FOR_EACH_CPU

log = logging.getLogger(__name__)

FENCE_S = 3.0
"""How long nobody runs under the name of a worker that has ended; others read the lease table several times in that."""
FENCE_MARGIN_S = 0.2
RESTART_PAUSE_MAX_S = 60.0
STEADY_S = 60.0
"""Who was up for so long has not failed again and again."""

DATAGRAM_BYTES_MAX = 4096
TICK_S = 1.0
PLACE_BYTES_MAX = 90  # the address of a socket has room for 107
EXTEND = b"EXTEND_TIMEOUT_USEC="

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def worker_names(base: str, count: int) -> tuple[str, ...]:
    """Return the worker ids of a group."""
    return tuple(f"{base}-{number}" for number in range(1, count + 1))


def cpus_usable(allowed: int, quota_cpus: float | None) -> int:
    """Return the number of CPUs that the process may run on, of which a container may have a share."""
    return allowed if quota_cpus is None else max(1, min(allowed, math.ceil(quota_cpus)))


def restart_pause_s(failures: int) -> float:
    """Return the pause before a worker that has failed so often in a row (1 or more) is started again."""
    return min(FENCE_S * 2.0 ** (failures - 1), RESTART_PAUSE_MAX_S) + FENCE_MARGIN_S


def group_end(code: int, *, was_ready: bool) -> int | None:
    """Return the exit code with which a group ends because a worker ended with `code` unasked; None if it goes on.

    It ends if not all workers have ever come up, so that whoever started it learns of that; later a worker, whatever
    ended it, is no reason to end the others. `code` is less than 0 if a signal ended the worker.
    """
    return None if was_ready else exit_code(code) or EXIT_FAILURE


def exit_code(code: int) -> int:
    """Return what a shell reports of a process that ended with `code`."""
    return EXIT_SIGNAL_BASE - code if code < 0 else code


def end_in_words(code: int) -> str:
    """Put into words how a worker ended."""
    if code == EXIT_CONFIGURATION:
        return "ended because its properties file has an error (exit code 2; mld check shows it)"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


@dataclass(slots=True)
class GroupMember:
    """A member of the group, whichever process it is now."""

    name: str
    pages: Path
    notify: Path
    process: asyncio.subprocess.Process | None = None
    lifeline: socket.socket | None = None
    is_begun: bool = False
    """It has a process, or is just getting one, which may speak before we know it."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """It has got past its configuration."""
    is_ready: bool = False
    status: str = "starting"
    alive_at: float = 0.0
    is_aborted: bool = False
    """It gave no sign of life, and was asked to end with a trace of where it hangs."""
    started_at: float = 0.0
    failures: int = 0
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What a group runs: `command` starts a worker; `definitions` are the `key=value` of the command line."""

    command: Sequence[str]
    name: str
    count: int
    definitions: Sequence[str]
    environ: Mapping[str, str]


class WorkerGroup:
    """`run` returns the exit code when all workers have ended."""

    def __init__(self, plan: GroupPlan, place: Path, manager: ServiceManager) -> None:
        """Make a group; `place` is a directory that only this user can enter."""
        self._plan = plan
        self._manager = manager
        names = worker_names(plan.name, plan.count)
        self.workers = [GroupMember(name, place / f"{n}.pages", place / f"{n}.notify") for n, name in enumerate(names)]
        self._stop = asyncio.Event()
        self._code = 0
        self._was_ready = False
        self._signalled_at: float | None = None
        self._status = ""

    async def run(self, hang_up: HangUp) -> int:
        """Run until stopped, or until a worker ends in a way that ends all."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if hang_up is HangUp.STOP:
            loop.add_signal_handler(signal.SIGHUP, self._on_signal, signal.SIGHUP)
        elif hang_up is HangUp.RELOAD:
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        with contextlib.ExitStack() as stack:
            for worker in self.workers:
                stack.enter_context(self._hearing(worker))
            ticking = asyncio.create_task(self._tick())
            try:
                first, *others = self.workers
                keeping = [asyncio.create_task(self._keep(first))]
                # A wrong file is complained about once: the others start when the first has got past it.
                await asyncio.wait(
                    [keeping[0], told := asyncio.create_task(first.told.wait())], return_when=asyncio.FIRST_COMPLETED
                )
                told.cancel()
                keeping += [asyncio.create_task(self._keep(worker)) for worker in others if not self._stop.is_set()]
                await asyncio.gather(*keeping)
            finally:
                ticking.cancel()
        return self._code

    # --- one worker ---------------------------------------------------------------------------------------------------

    async def _keep(self, worker: GroupMember) -> None:
        """Have the worker run until the group stops."""
        while not self._stop.is_set():
            code = await self._run_once(worker)
            if self._stop.is_set():
                self._code = self._code or exit_code(code)
                return
            end = group_end(code, was_ready=self._was_ready)
            if end is not None:
                self._end(end)
                return
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
        """Start a process of the worker and wait for its end; its return code."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environ = {
                **self._plan.environ,
                LIFELINE: str(theirs.fileno()),
                WORKER: worker.name,
                PAGES: str(worker.pages),
                DEFINED: json.dumps(list(self._plan.definitions)),
                SOCKET: str(worker.notify),
            }
            if self._manager.keepalive_s is not None:
                micros = self._manager.keepalive_s * KEEPALIVES_PER_WATCHDOG * 1e6
                environ[WATCHDOG_MICROS] = str(round(micros))
            worker.pages.unlink(missing_ok=True)
            worker.status, worker.is_ready, worker.is_aborted = "starting", False, False
            worker.started_at = worker.alive_at = time.monotonic()
            worker.is_begun = True
            try:
                # A group of its own: a signal to ours is meant for us, and we pass it on once.
                worker.process = await asyncio.create_subprocess_exec(
                    *self._plan.command, env=environ, pass_fds=(theirs.fileno(),), process_group=0
                )
            except OSError as error:
                log.error("worker %s cannot be started: %s", worker.name, error, extra={"action": "spawn_failed"})
                worker.is_begun = False
                return EXIT_FAILURE
            theirs.close()
            ours.setblocking(False)
            if self._stop.is_set():
                _send(worker, signal.SIGTERM)
            worker.lifeline = ours
            try:
                return await worker.process.wait()
            finally:
                worker.process, worker.lifeline, worker.is_begun, worker.is_ready = None, None, False, False
                self._tell_others(worker)

    def _tell_others(self, dead: GroupMember) -> None:
        """Tell the others. Its process has been waited for: nobody runs under that name before the fence ends."""
        news = news_of_end(dead.name, time.monotonic() + FENCE_S)
        for worker in self.workers:
            _tell(worker, news)

    # --- what workers tell --------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _hearing(self, worker: GroupMember) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as inbox:
            inbox.bind(str(worker.notify))
            worker.notify.chmod(0o600)
            loop.add_reader(inbox, self._hear, worker, inbox)
            try:
                yield
            finally:
                loop.remove_reader(inbox)

    def _hear(self, worker: GroupMember, inbox: socket.socket) -> None:
        try:
            told = inbox.recv(DATAGRAM_BYTES_MAX)
        except OSError:
            return
        if not worker.is_begun:
            return  # of one that has ended since
        worker.told.set()
        worker.alive_at = time.monotonic()
        for line in told.split(b"\n"):
            if line == b"READY=1":
                worker.is_ready = True
            elif line.startswith(b"STATUS="):
                worker.status = line[7:].decode(errors="replace")
            elif line.startswith(EXTEND) and (not self._was_ready or self._stop.is_set()):
                within_s = int(line.partition(b"=")[2]) / 1e6
                (self._manager.stopping if self._stop.is_set() else self._manager.starting)(within_s)
        if not self._was_ready and all(one.is_ready for one in self.workers):
            self._was_ready = True
            self._manager.ready()
            log.info("all %d workers run", len(self.workers), extra={"action": "unit_ready"})

    async def _tick(self) -> None:
        """Tell the service manager that we live, and end a worker that says no more that it does."""
        while True:
            try:
                self._look_after()
            except Exception as error:
                survived(error, "looking after the workers")
            await asyncio.sleep(min(TICK_S, self._manager.keepalive_s or TICK_S))

    def _look_after(self) -> None:
        manager, keepalive_s = self._manager, self._manager.keepalive_s
        running = sum(worker.is_ready for worker in self.workers)
        texts = "; ".join(f"{number}: {worker.status}" for number, worker in enumerate(self.workers, 1))
        status = f"{running} of {len(self.workers)} workers run. {texts}"
        if status != self._status:
            self._status = status
            manager.status(status)
        if keepalive_s is None:
            return
        manager.alive()
        limit_s = keepalive_s * KEEPALIVES_PER_WATCHDOG
        for worker in self.workers:
            is_watched = worker.process is not None and worker.is_ready  # before that, systemd waits as well
            if is_watched and time.monotonic() - worker.alive_at > limit_s:
                fields = {"action": "worker_hangs", "worker": worker.name}
                log.error("worker %s gave no sign of life for %.0f s: ended", worker.name, limit_s, extra=fields)
                worker.alive_at = time.monotonic()
                _send(worker, signal.SIGKILL if worker.is_aborted else signal.SIGABRT)
                worker.is_aborted = True

    # --- the end ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self._signalled_at is not None and now - self._signalled_at < SIGNAL_ECHO_S:
            return
        log.info("%s received", number.name, extra={"action": "signal"})
        self._signalled_at = now
        self._end(0)

    def _end(self, code: int) -> None:
        """Ask all to stop; a second time ends them at once."""
        self._code = self._code or code
        self._stop.set()
        for worker in self.workers:
            _send(worker, signal.SIGTERM)

    def _reload(self) -> None:
        """Have all of them read their file again; one that starts does so anyway, and may not know the signal yet."""
        self._manager.reloading(time.monotonic())
        for worker in self.workers:
            if worker.is_ready:
                _send(worker, signal.SIGHUP)
        self._manager.ready()


def _tell(worker: GroupMember, news: bytes) -> None:
    if worker.lifeline is not None:
        with contextlib.suppress(OSError):  # it has ended as well, or does not listen: it finds out by itself
            worker.lifeline.send(news)


def _send(worker: GroupMember, number: signal.Signals) -> None:
    if worker.process is not None:
        with contextlib.suppress(ProcessLookupError):
            worker.process.send_signal(number)


@contextlib.contextmanager
def group_place() -> Iterator[Path]:
    """Make a directory of this user alone for the sockets of a group, for as long as it lasts. Raises StartupError."""
    try:
        place = tempfile.TemporaryDirectory(prefix="mld-unit-", ignore_cleanup_errors=True)
    except OSError as error:
        raise StartupError(f"no directory for the sockets of the workers: {error}; set TMPDIR") from error
    with place as name:
        if len(os.fsencode(name)) > PLACE_BYTES_MAX:
            raise StartupError(f"{name} is too long a path for the sockets of the workers; set TMPDIR to a shorter one")
        yield Path(name)


def workers_wanted(settings: Settings) -> int:
    """Return how many workers `mld.processes` means here."""
    if settings.processes != ONE_FOR_EACH_CPU:
        return settings.processes
    from mld.fleet.report.cpu_formulas import parse_cpu_max  # with clients of AWS, which a supervisor has no use for

    try:
        quota_cpus = parse_cpu_max(CPU_MAX.read_text())
    except (OSError, ValueError, IndexError):
        quota_cpus = None
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cpus_usable(allowed, quota_cpus)


async def run_group(settings: Settings, count: int, file: str, options: Sequence[str], overrides: Sequence[str]) -> int:
    """Run `count` workers of the properties file until they are stopped; returns the exit code.

    `options` are those of the command line that concern the log, `overrides` its `key=value`.
    """
    manager = claim_manager(os.environ, os.getpid())
    name = settings.worker_id or new_worker_id()
    command = (sys.executable, "-P", "-m", "mld", "run", "-p", file, *options)
    log.info(
        "starting %d workers",
        count,
        extra={"action": "unit_starting", "application": settings.application_name, "worker": name},
    )
    warn_without_init()
    try:
        with group_place() as place:
            group = WorkerGroup(GroupPlan(command, name, count, overrides, os.environ), place, manager)
            hang_up = hang_up_here(is_supervised=manager.is_there)
            if settings.serving.http is None:
                return await group.run(hang_up)
            from mld.daemon.group_pages import GroupPages
            from mld.serving.web_pages import serving

            async with serving(GroupPages(group).routes(), settings.serving):
                return await group.run(hang_up)
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
