"""The session host: one process per daemon that collects what all shards offer and runs one job over it per trigger.

An event loop serves the links; everything that talks to Spark happens on one other thread, one micro-batch after the
other, while records gather for the next one (`offers`). The host ends when the daemon and the last child are gone, when
the JVM is gone, or when it cannot start; its children then fail, and the daemon starts them anew at their checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from mld.processors.spark import link
from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, plan
from mld.processors.spark.batch.outcome import BatchOutcome
from mld.processors.spark.batch.spool import Spool, open_spool
from mld.processors.spark.fatal import EXIT_FAILURE, FatalError
from mld.processors.spark.high_water_marks import fresh
from mld.processors.spark.host.connection import ChildConnection, before_of
from mld.processors.spark.host.host_status import HostStatus, counted
from mld.processors.spark.host.offers import OfferQueue
from mld.processors.spark.host.process_watch import watch_process
from mld.processors.spark.host.start_up import Started
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.run_directory import SOCKET_FILE
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.settings import SparkSettings
from mld.processors.spark.writer_identity import PIPELINE_KEY

WRITE_EVERY_S = 5.0
log = logging.getLogger("mld.spark")
EXIT_OK = 0
LINGER_S = 10.0
"""Children that outlive their daemon have closed their links by then."""
REFUSE_S = 1.0
"""After a failed start: children that have just connected are told the reason as well."""
CLOSE_WAIT_S = 10.0
"""A session that takes longer to stop is killed."""
BACKLOG = 1_024
PAGE_BYTES = 16 << 20
"""A page is complete if it has so many bytes of lines, and if a micro-batch begins."""
STALLED_S = 120.0
"""A trigger that takes longer is said to make no progress, and again each time it has taken twice as long."""


class SessionHost:
    """All state of the host, on one loop."""

    def __init__(
        self,
        settings: SparkSettings,
        directory: Path,
        daemon_pid: int,
        start: Callable[[SparkSettings, Path, Spool], Started],
        properties_file: str = "",
        scratch: Path | None = None,
    ) -> None:
        """Prepare the host; `directory` has the socket and the status, `scratch` has room for data; the same unless it
        is given.

        Raises SpoolError."""
        self._start = start
        interval_s = max(settings.trigger_interval_s, settings.trigger_quiet_s)
        self._status = HostStatus(directory, settings.application, properties_file, daemon_pid, interval_s)
        self._settings = settings
        self._directory = directory
        self._scratch = scratch or directory
        self._daemon_pid = daemon_pid
        self._children: dict[int, ChildConnection] = {}
        self._numbers = 0
        self._last_start = -1e9
        self._trigger_at: float | None = None
        """Since when the oldest trigger has been at it."""
        self._started: Started | None = None
        self._spool = open_spool(settings.spool, self._scratch, settings.s3)
        self.offers = OfferQueue(settings, self._spool, self._children)
        self._thread = ThreadPoolExecutor(1, "spark")
        self._ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.daemon_gone = False
        self._failure: tuple[str, int] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, listening: Callable[[], None]) -> int:
        """Serve until it is over; returns the exit status. `listening` is called once children can connect."""
        loop = asyncio.get_running_loop()
        path = self._directory / SOCKET_FILE
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._accept, path, backlog=BACKLOG)
        path.chmod(0o600)
        watch_process(loop, self._daemon_pid, self.daemon_ended)
        listening()
        tasks = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._watch())
        try:
            return await self._ending
        finally:
            for task in tasks:
                task.cancel()
            server.close()
            path.unlink(missing_ok=True)
            for child in list(self._children.values()):
                child.close()
            self._close()

    async def _work(self) -> None:
        try:
            started = self._started = await self._start_session()
            if started.jvm_pid is not None:
                watch_process(asyncio.get_running_loop(), started.jvm_pid, self._jvm_ended)
            self._status.ready(started.about)
            for child in self._children.values():
                self._welcome(child)
            await self._run_triggers(started.engine)
        except FatalError as error:
            self._fail(str(error), error.status, REFUSE_S)
        except SessionGone as error:
            self._fail(f"the Spark session is gone: {error}")
        except Exception:
            log.exception("the session host has a fault")
            self._fail("the session host has a fault; see its lines in the log")

    async def _start_session(self) -> Started:
        """Start the session within its time. Raises FatalError."""
        start_s = self._settings.start_timeout_s
        starting = asyncio.get_running_loop().run_in_executor(
            self._thread, self._start, self._settings, self._scratch, self._spool
        )
        try:
            async with asyncio.timeout(start_s):
                return await starting
        except TimeoutError:
            raise FatalError(
                f"the Spark session was not ready within {start_s:g} s; see its lines above, and "
                "mld.spark.startTimeoutMillis"
            ) from None

    def _fail(self, reason: str, status: int = EXIT_FAILURE, refuse_s: float = 0.0) -> None:
        """End the host, after it has told all children why, and those that connect within `refuse_s`."""
        log.error("%s", reason)
        self._failure = reason, status
        for child in list(self._children.values()):
            child.fail(reason, status)
        asyncio.get_running_loop().call_later(refuse_s, self._end, status)

    def _close(self) -> None:
        """Stop the session within a bound; the caller ends the process."""
        started = self._started
        if started is not None:
            started.engine.stop()
            closing = threading.Thread(target=started.close, daemon=True)
            closing.start()
            closing.join(CLOSE_WAIT_S)
            if started.jvm_pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(started.jvm_pid, signal.SIGKILL)
        self._spool.close()

    def daemon_ended(self) -> None:
        self.daemon_gone = True
        log.info("the daemon has ended", extra={"action": "daemon_ended"})
        if self._children:
            asyncio.get_running_loop().call_later(LINGER_S, self._end, EXIT_OK)
        else:
            self._end(EXIT_OK)

    def _jvm_ended(self) -> None:
        self._fail("the JVM of the Spark session has ended")

    def _end(self, status: int) -> None:
        if not self._ending.done():
            self._ending.set_result(status)

    # --- links -------------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._numbers += 1
        child = self._children[self._numbers] = ChildConnection(self, self._numbers, writer, self._settings.fit)
        await child.serve(reader)

    def hello(self, child: ChildConnection, head: dict[str, Any]) -> None:
        if self._failure is not None:
            child.fail(*self._failure)
            return
        if head.get("version") != link.VERSION:
            self._fail("another version of mld-spark was installed")
            return
        if self._is_of_another_stream(child, head.get("arn"), head.get("created")):
            return
        child.shard = StreamShard(str(head["stream"]) or self._settings.stream, str(head["shard"]))
        child.before = before_of(head, child.shard)
        for other in list(self._children.values()):
            if other is not child and other.shard == child.shard:
                other.fail("another child of this shard has taken over")
        if self._started is not None:
            self._welcome(child)

    def _is_of_another_stream(self, child: ChildConnection, arn: object, created: object) -> bool:
        """Return whether the stream was deleted and made again since we began: whoever knows the later one is right.

        Our sinks are open for the stream as it was then; a new host opens them for the stream as it is."""
        writer = self._settings.writer
        if writer is None or not (writer.created and arn and created) or (arn, created) == (writer.arn, writer.created):
            return False  # or a stream that mld.spark.streamId names, or one of several, told apart by identifiers
        said = f"the stream {arn} was made at {created}, and this session was started for {writer.arn} of"
        said = f"{said} {writer.created}: it was deleted and made again"
        if str(created) > writer.created:
            self._fail(said)
        else:
            child.fail(said)
        return True

    def _welcome(self, child: ChildConnection) -> None:
        if child.shard is None:
            return
        child.send(
            link.READY,
            {
                "stream": child.shard.stream_name,
                "shard": child.shard.shard,
                "pages": self._spool.pages(child.number),
                "pageBytes": min(PAGE_BYTES, self._settings.batch_bytes_max),
                "drainMillis": int(1000 * self._settings.drain_timeout_s),
            },
        )

    def gone(self, child: ChildConnection) -> None:
        del self._children[child.number]
        self.offers.drop(child)
        if self.daemon_gone and not self._children:
            self._end(EXIT_OK)

    # --- triggers ----------------------------------------------------------------------------------------------------

    async def _run_triggers(self, engine: Engine) -> NoReturn:
        """Run one micro-batch after the other."""
        while True:
            await self.offers.due(self._last_start)
            self._trigger_at = self._last_start = time.monotonic()
            try:
                if taken := await self.offers.take():
                    await self._trigger(taken, engine)
                await self._end_shards(engine)
            finally:
                self.offers.clear()
            self._trigger_at = None

    async def _watch(self) -> NoReturn:
        """Tell what waits, whatever Spark does; say loudly that a trigger makes no progress. A slow job and one that
        hangs look alike, and a new session would meet the same sink, so nothing is ended."""
        stalled_s = STALLED_S
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            now = time.monotonic()
            times = [at for child in self._children.values() if (at := child.waiting_since) is not None]
            trigger_s = None if self._trigger_at is None else now - self._trigger_at
            self._status.waits(now - min(times) if times else None, trigger_s)
            if trigger_s is None or trigger_s < STALLED_S:
                stalled_s = STALLED_S
            elif trigger_s >= stalled_s:
                stalled_s *= 2
                jvm_pid = None if self._started is None else self._started.jvm_pid
                log.error(
                    "a trigger has not ended for %.0f s, and nothing is committed: Spark is slow, waits for a sink, or "
                    "hangs (its UI, or jstack %s, shows it); if it hangs, end that process, and a new session begins "
                    "at the checkpoints",
                    trigger_s,
                    jvm_pid or "of the driver",
                )

    async def _trigger(self, taken: list[Offer], engine: Engine) -> None:
        """Run what was taken, without the offers of children that are gone: nothing of them is checkpointed, so they
        are delivered again, and what stands before them may not be committed.
        """
        started = self._last_start
        offers = [offer for offer in taken if offer.link in self._children]
        marks = {o.shard: mark for o in offers if (mark := engine.mark_of(o.shard)) is not None}
        batch = plan(offers, marks)
        repeated = sum(offer.records for offer in offers if not fresh(offer.last, engine.held(offer.shard)))
        outcome = await asyncio.get_running_loop().run_in_executor(self._thread, engine.run, batch)
        outcome.figures.dropped = repeated
        self._report(batch, outcome, started)
        self._answer(batch, outcome)

    async def _end_shards(self, engine: Engine) -> None:
        """Let the children of shards go on that have ended, once all sinks keep that."""
        ending = {child.shard: child for child in self._children.values() if child.is_ending and child.shard}
        if not ending:
            return
        before = {shard: child.before for shard, child in ending.items()}
        failed = await asyncio.get_running_loop().run_in_executor(self._thread, engine.end, before)
        for shard, child in ending.items():
            child.is_ending = False
            if shard in failed:
                child.fail(failed[shard])
            else:
                child.send(link.GO, {})
        self._say_failed(failed)

    def _answer(self, batch: MicroBatch, outcome: BatchOutcome) -> None:
        for offer in batch.offers:
            child = self._children.get(offer.link)
            reason = outcome.failed.get(offer.shard)
            if child is not None and reason is not None:
                child.fail(reason)
            elif child is not None:
                child.commit(offer.number)
        self._say_failed(outcome.failed)

    def _say_failed(self, failed: Mapping[StreamShard, str]) -> None:
        for shard, reason in failed.items():
            log.error("%s stops: %s", shard.label, reason)

    def _report(self, batch: MicroBatch, outcome: BatchOutcome, started: float) -> None:
        figures = outcome.figures
        if figures.dropped:
            log.warning(
                "%d records were delivered again and are not written again: the ledgers of the sinks have their "
                "positions. That is right after a crash; for a replay, set %s to another name (docs/use/spark.md, "
                "Replay)",
                figures.dropped,
                PIPELINE_KEY,
            )
        first_at = min((offer.arrived_at for offer in batch.offers), default=started)
        took = {
            "handover": figures.handover_s,
            "pipeline": figures.pipeline_s,
            "publish": figures.publish_s,
            "total": time.monotonic() - started,
            "waited": started - first_at,
        }
        counts = counted(batch, outcome)
        lags = {child.shard.label: child.behind_ms for child in self._children.values() if child.shard is not None}
        self._status.triggered(counts, lags)
        said = {
            "shards": len(batch.ends),
            **counts,
            **{f"{name}_ms": int(1000 * seconds) for name, seconds in took.items()},
            "lag_ms": max((lag for lag in lags.values() if lag is not None), default="?"),
        }
        log.info("trigger: %s", " ".join(f"{name}={value}" for name, value in said.items()))

    # --- what is printed ---------------------------------------------------------------------------------------------

    def pass_on(self, text: str) -> bool:
        """Pass lines to the daemon's log through a child; False if no child can take them."""
        return any(child.said(text) for child in self._children.values() if child.shard is not None)
