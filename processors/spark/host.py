"""The session host: one process per daemon that collects what all shards offer and runs one job over it per trigger.

An event loop serves the links; everything that talks to Spark happens on one other thread, one micro-batch after the
other. Meanwhile offers gather for the next one, as many as `mld.spark.maxInFlightBytes` allows; what is beyond that
stays in the children's sockets. The host ends when the daemon and the last child are gone, when the JVM is gone, or
when it cannot start; its children then fail, and the daemon starts them anew at their checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from processors.spark import engine as running
from processors.spark import lines, session
from processors.spark.batching import MicroBatch, Offer, is_due, plan
from processors.spark.holding import limits
from processors.spark.hosting import EXIT_CONFIGURATION, SOCKET_FILE, HostingError, scratch_directory
from processors.spark.identity import PIPELINE_KEY
from processors.spark.links import Link
from processors.spark.outcomes import Outcome
from processors.spark.positions import Position, Shard
from processors.spark.saying import complain, fit_of, log_by
from processors.spark.settings import Settings, SettingsError, load
from processors.spark.spool import Spool, SpoolError, open_spool
from processors.spark.starting import Started, StartError, start
from processors.spark.status import Status
from processors.spark.surroundings import Printed, Watch, clear, hold, sweep

log = logging.getLogger("mld.spark")

EXIT_OK, EXIT_FAILURE = 0, 1
GATHER_MAX_S = 0.1
"""Shards that are read on one beat offer within this time; a tenth of the trigger if that is less."""
LINGER_S = 10.0
"""Children that outlive their daemon have closed their links by then."""
REFUSE_S = 1.0
"""After a failed start: children that have just connected are told the reason as well."""
CLOSE_WAIT_S = 10.0
"""A session that takes longer to stop is killed."""
BACKLOG = 1_024


@dataclass(slots=True)
class Trigger:
    """A micro-batch under way."""

    batch: MicroBatch
    file: int
    started_at: float


class Host:
    """All state of the host, on one loop."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        daemon_pid: int,
        start: Callable[[Settings, Path, Spool], Started],
        properties_file: str = "",
        scratch: Path | None = None,
    ) -> None:
        """`directory` has the socket and the status, `scratch` has room for data; the same unless it is given."""
        self._start = start
        self._status = Status(directory, settings.application, properties_file, daemon_pid)
        self._settings = settings
        self._directory = directory
        self._scratch = scratch or directory
        self._daemon_pid = daemon_pid
        self._links: dict[int, Link] = {}
        self._numbers = 0
        self._waiting: list[Offer] = []
        self._complete: dict[int, int] = {}
        """Files that wait and get no more records, with their lengths."""
        self._running: Trigger | None = None
        self._held: deque[tuple[Link, int]] = deque()
        self._flying = 0
        self._lag_ms: dict[Shard, int | None] = {}
        self._asked = False
        self._changed = asyncio.Event()
        self._first_waiting_at = 0.0
        self._last_start = -1e9
        self._started: Started | None = None
        self._spool: Spool | None = None
        self._thread = ThreadPoolExecutor(1, "spark")
        self._ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.daemon_gone = False
        self._failure: tuple[str, int] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, listening: Callable[[], None]) -> int:
        """Serve until it is over; returns the exit status. `listening` is called once children can connect."""
        loop = asyncio.get_running_loop()
        self._spool = open_spool(self._settings.spool, self._scratch)
        path = self._directory / SOCKET_FILE
        path.unlink(missing_ok=True)
        server = await loop.create_unix_server(self._accept, str(path), backlog=BACKLOG)
        path.chmod(0o600)
        watch = Watch(loop)
        watch.process(self._daemon_pid, self.daemon_ended)
        listening()
        work = asyncio.ensure_future(self._work(watch))
        try:
            await asyncio.wait([work, self._ending], return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else self._ending.result()
        finally:
            work.cancel()
            server.close()
            path.unlink(missing_ok=True)
            for one in list(self._links.values()):
                one.close()
            self._close()

    async def _work(self, watch: Watch) -> int:
        loop = asyncio.get_running_loop()
        assert self._spool is not None
        try:
            starting = loop.run_in_executor(self._thread, self._start, self._settings, self._scratch, self._spool)
            async with asyncio.timeout(self._settings.start_timeout_s):
                self._started = await starting
        except (StartError, TimeoutError) as caught:
            error = caught if isinstance(caught, StartError) else StartError(self._late(), passing=True)
            log.error("%s", error)
            self._failure = str(error), EXIT_FAILURE if error.passing else EXIT_CONFIGURATION
            self._give_up(*self._failure)
            await asyncio.sleep(REFUSE_S)
            return self._failure[1]
        if self._started.jvm_pid is not None:
            watch.process(self._started.jvm_pid, self._jvm_ended)
        self._status.ready({**self._started.about, "jvmPid": self._started.jvm_pid})
        for one in self._links.values():
            self._welcome(one)
        try:
            while True:
                await self._due()
                await self._trigger()
        except session.SessionGone as error:
            return self._give_up(f"the Spark session is gone: {error}", EXIT_FAILURE)
        except running.Stopped:
            return EXIT_OK
        except Exception:
            log.exception("the session host has a fault")
            return self._give_up("the session host has a fault; see its lines in the log", EXIT_FAILURE)

    def _late(self) -> str:
        return (
            f"the Spark session was not ready within {self._settings.start_timeout_s:g} s; see its lines above, and "
            "mld.spark.startTimeoutMillis"
        )

    def _give_up(self, reason: str, status: int) -> int:
        for one in list(self._links.values()):
            one.fail(reason, status)
        return status

    def _close(self) -> None:
        """Stop the session within a bound; the caller ends the process."""
        started, spool = self._started, self._spool
        if started is not None:
            started.engine.stop()
            closing = threading.Thread(target=started.close, daemon=True)
            closing.start()
            closing.join(CLOSE_WAIT_S)
            if started.jvm_pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(started.jvm_pid, signal.SIGKILL)
        if spool is not None:
            spool.close()

    def daemon_ended(self) -> None:
        self.daemon_gone = True
        log.info("the daemon has ended", extra={"action": "daemon_ended"})
        if self._links:
            asyncio.get_running_loop().call_later(LINGER_S, self._end, EXIT_OK)
        else:
            self._end(EXIT_OK)

    def _jvm_ended(self) -> None:
        log.error("the JVM has ended; all shards start again from their checkpoints")
        self._end(self._give_up("the JVM of the Spark session has ended", EXIT_FAILURE))

    def _end(self, status: int) -> None:
        if not self._ending.done():
            self._ending.set_result(status)

    # --- links -------------------------------------------------------------------------------------------------------

    def _accept(self) -> Link:
        self._numbers += 1
        one = Link(self, self._numbers, self._settings.fit)
        self._links[one.number] = one
        return one

    def hello(self, one: Link, head: dict[str, Any]) -> None:
        if self._failure is not None:
            one.fail(*self._failure)
            return
        if self._is_of_another_stream(one, head.get("arn"), head.get("created")):
            return
        one.shard = Shard(str(head["stream"]) or self._settings.stream, str(head["shard"]))
        for other in list(self._links.values()):
            if other is not one and other.shard == one.shard:
                other.fail("another child of this shard has taken over")
        if self._started is not None:
            self._welcome(one)

    def _is_of_another_stream(self, one: Link, arn: object, created: object) -> bool:
        """The stream was deleted and made again since we began: whoever knows the later one is right.

        Our sinks are open for the stream as it was then; a new host opens them for the stream as it is."""
        writer = self._settings.writer
        if writer is None or self._settings.stream_id or not (arn and created):
            return False
        if (arn, created) == (writer.arn, writer.created):
            return False
        said = f"the stream {arn} was made at {created}, and this session was started for {writer.arn} of"
        said = f"{said} {writer.created}: it was deleted and made again"
        if str(created) > writer.created:
            log.error("%s; all shards start again", said)
            one.fail(said)
            self._end(self._give_up(said, EXIT_FAILURE))
        else:
            one.fail(said)
        return True

    def _welcome(self, one: Link) -> None:
        if one.shard is None:
            return
        hold = limits(self._settings.trigger_interval_s, self._settings.reply_timeout_s)
        bounds = {"hold": hold.hold_s, "patience": hold.patience_s, "queued": hold.queued_s}
        bounds["drain"] = self._settings.drain_timeout_s
        one.ready({f"{name}Millis": int(1000 * seconds) for name, seconds in bounds.items()})

    def admit(self, one: Link, size: int) -> bool:
        if self._held or (self._flying and self._flying + size > self._settings.in_flight_bytes_max):
            self._held.append((one, size))
            self._changed.set()
            return False
        self._flying += size
        return True

    def offered(self, one: Link, number: int, line: bytearray) -> None:
        assert one.shard is not None and self._spool is not None
        size = len(line)
        try:
            batch = lines.split(line, one.shard)
            if batch.first is None or batch.last is None:
                self._release(size)
                one.accept(number, None)
                return
            file, start, stop = self._spool.append(batch.records)
        except (lines.LineError, SpoolError) as error:
            self._release(size)
            log.error("%s", error)
            one.fail(str(error))
            return
        self._lag_ms[one.shard] = batch.millis_behind_latest
        now = time.monotonic()
        offer = Offer(one.number, number, one.shard, batch.first, batch.last, batch.count, size, file, start, stop, now)
        if not self._waiting:
            self._first_waiting_at = now
        self._waiting.append(offer)
        if stop >= self._settings.batch_bytes_max:
            self._complete[file] = stop
            self._spool.cut()
        one.accept(number, batch.last)
        self._changed.set()

    def flush(self, one: Link) -> None:
        if one.waiting:
            self._asked = True
            self._changed.set()

    def gone(self, one: Link) -> None:
        """What the child has offered is dropped, unless it is in a job: whoever comes next gets it again."""
        self._links.pop(one.number, None)
        if one.shard is not None:
            self._lag_ms.pop(one.shard, None)
        dropped = [offer for offer in self._waiting if offer.link == one.number]
        if dropped:
            self._waiting = [offer for offer in self._waiting if offer.link != one.number]
            for file in self._complete.keys() - {offer.spool for offer in self._waiting}:
                self._spool_file_is_over(file)
        self._held = deque(held for held in self._held if held[0] is not one)
        self._release(sum(offer.size for offer in dropped) + one.admitted_bytes)
        if self.daemon_gone and not self._links:
            self._end(EXIT_OK)

    def _spool_file_is_over(self, file: int) -> None:
        """Nobody waits for its records any more."""
        assert self._spool is not None
        del self._complete[file]
        self._spool.remove(self._spool.path(file))

    def _release(self, size: int) -> None:
        """Room for those who wait for it, in the order of their coming."""
        self._flying -= size
        while self._held:
            one, wanted = self._held[0]
            if self._flying and self._flying + wanted > self._settings.in_flight_bytes_max:
                return
            self._held.popleft()
            self._flying += wanted
            one.go_on()

    # --- triggers ----------------------------------------------------------------------------------------------------

    async def _due(self) -> None:
        """Wait until a micro-batch is to start."""
        gather_s = min(GATHER_MAX_S, self._settings.trigger_interval_s / 10)
        while True:
            self._changed.clear()
            now = time.monotonic()
            due_at = max(self._last_start + self._settings.trigger_interval_s, self._first_waiting_at + gather_s)
            if self._waiting and is_due(
                now,
                due_at,
                sum(offer.size for offer in self._waiting),
                bytes_max=self._settings.batch_bytes_max,
                asked=self._asked or bool(self._held),
            ):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(due_at - now if self._waiting else None):
                    await self._changed.wait()

    async def _trigger(self) -> None:
        assert self._spool is not None and self._started is not None
        loop = asyncio.get_running_loop()
        engine = self._started.engine
        offers, number, length = self._take()
        started = self._last_start = time.monotonic()
        marks: dict[Shard, Position] = {}
        for shard in {offer.shard for offer in offers}:
            mark = engine.mark_of(shard)
            if mark is not None:
                marks[shard] = mark
        batch = plan(offers, marks)
        self._running = Trigger(batch, number, started)
        path = self._spool.path(number)
        exact = length == sum(piece.offer.stop - piece.offer.start for piece in batch.slices)
        try:
            outcome = await loop.run_in_executor(self._thread, engine.run, batch, path if exact else None)
        finally:
            self._running = None
            self._spool.remove(path)
        lags = {shard.shard: lag for shard, lag in sorted(self._lag_ms.items())}
        self._status.triggered(batch.records, batch.size, outcome.figures, len(outcome.failed), lags)
        self._answer(batch, outcome)
        self._report(batch, outcome, started)

    def _take(self) -> tuple[list[Offer], int, int]:
        """The offers of the oldest file, its number and its length; the file is complete then."""
        assert self._spool is not None
        number = self._waiting[0].spool
        offers = [offer for offer in self._waiting if offer.spool == number]
        self._waiting = [offer for offer in self._waiting if offer.spool != number]
        if self._waiting:
            self._first_waiting_at = self._waiting[0].arrived_at
        else:
            self._asked = False
        if number not in self._complete:
            _, self._complete[number] = self._spool.cut()
        return offers, number, self._complete.pop(number)

    def _answer(self, batch: MicroBatch, outcome: Outcome) -> None:
        for offer in batch.offers:
            one = self._links.get(offer.link)
            reason = outcome.failed.get(offer.shard)
            if one is not None and reason is None:
                one.commit(offer.number)
            elif one is not None and reason is not None and not one.closed:
                one.fail(reason)
        for shard, reason in outcome.failed.items():
            log.error("%s stops: %s", shard.shard, reason)
        self._release(sum(offer.size for offer in batch.offers))

    def _report(self, batch: MicroBatch, outcome: Outcome, started: float) -> None:
        figures = outcome.figures
        for sink, count in figures.dropped.items():
            log.warning(
                "%s: %d records were delivered again and are not written again: its ledger has their positions. That "
                "is right after a crash; for a replay, set %s to another name (docs/use/spark.md, Replay)",
                sink,
                count,
                PIPELINE_KEY,
            )
        now = time.monotonic()
        lags = [lag for lag in self._lag_ms.values() if lag is not None]
        log.info(
            "trigger: shards=%d records=%d bytes=%d rows=%d jobs=%d handover_ms=%d pipeline_ms=%d publish_ms=%d "
            "total_ms=%d waited_ms=%d lag_ms=%s dropped=%d malformed=%d poisoned=%d failed_shards=%d",
            len(batch.ends),
            batch.records,
            batch.size,
            figures.rows,
            figures.jobs,
            figures.handover_s * 1000,
            figures.pipeline_s * 1000,
            figures.publish_s * 1000,
            (now - started) * 1000,
            (started - min((offer.arrived_at for offer in batch.offers), default=started)) * 1000,
            max(lags, default="?"),
            sum(figures.dropped.values()),
            figures.malformed,
            figures.poisoned,
            len(outcome.failed),
        )

    # --- what is printed ---------------------------------------------------------------------------------------------

    def pass_on(self, text: str) -> bool:
        """Lines for the daemon's log, by way of a child."""
        return any(one.said(text) for one in self._links.values() if one.shard is not None)


def main() -> NoReturn:
    """`directory properties-file daemon-pid ready-fd`, as `hosting` starts it."""
    directory, file, daemon_pid, told = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    # A supervisor signals a whole group at once; the daemon decides when its shards are done. The JVM inherits it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    log_by(fit_of((), os.environ))
    try:
        settings = load(file, os.environ.get("MLD_OVERRIDES", "").splitlines(), os.environ)
    except SettingsError as error:
        complain(f"the configuration cannot be used:\n{error}")
        _exit(EXIT_CONFIGURATION)
    log_by(settings.fit)
    sweep()
    try:
        scratch = scratch_directory(daemon_pid)
        locks = [hold(place) for place in dict.fromkeys((directory, scratch))]
        status = asyncio.run(_serve(settings, directory, scratch, daemon_pid, told, file))
        del locks
    except (SpoolError, HostingError) as error:
        complain(str(error))
        status = EXIT_CONFIGURATION
    _exit(status)


async def _serve(
    settings: Settings, directory: Path, scratch: Path, daemon_pid: int, told: int, properties_file: str
) -> int:
    loop = asyncio.get_running_loop()
    host = Host(settings, directory, daemon_pid, start, properties_file, scratch)
    delivering: list[asyncio.Future[None]] = []

    def listening() -> None:
        os.write(told, b"+")
        os.close(told)
        delivering.append(asyncio.ensure_future(Printed(loop, host.pass_on, settings.fit).keep_delivering()))

    try:
        return await host.run(listening)
    finally:
        for one in delivering:
            one.cancel()
        for place in (directory, scratch):
            clear(place, daemon_lives=not host.daemon_gone)


def _exit(status: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(status)  # threads of PySpark may still wait for a JVM that is gone
