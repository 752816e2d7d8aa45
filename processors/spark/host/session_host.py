"""The session host of a daemon: starts the Spark session, serves the children of all shards, and decides when to end.

The event loop serves the children. One other thread calls Spark, while records for the next micro-batch gather
(`micro_batch_loop`). The host ends when the daemon and the last child are gone, when the JVM is gone, or when the
session cannot start. When a host ends, its children fail, and the daemon starts them again at their checkpoints.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mld.processors.spark import link
from mld.processors.spark.batch.spool import Spool, open_spool
from mld.processors.spark.fatal import EXIT_FAILURE, FatalError
from mld.processors.spark.host.connection import ChildConnection, before_of
from mld.processors.spark.host.host_status import HostStatus
from mld.processors.spark.host.micro_batch_loop import MicroBatchLoop
from mld.processors.spark.host.offers import OfferQueue
from mld.processors.spark.host.process_watch import watch_process
from mld.processors.spark.host.start_up import Started
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.run_directory import SOCKET_FILE
from mld.processors.spark.session_errors import SessionGone
from mld.processors.spark.settings import SparkSettings

log = logging.getLogger("mld.spark")
EXIT_OK = 0
LINGER_S = 10.0
"""How long children have to close their connections, after the daemon has ended."""
REFUSE_S = 1.0
"""How much longer the host serves after a failed start, so that children that are just connecting get the reason, too.
"""
CLOSE_WAIT_S = 10.0
"""How long the session has to stop; then its JVM is killed."""
BACKLOG = 1_024
PAGE_BYTES = 16 << 20
"""A child completes its page when it has this many bytes of lines, or earlier, when a micro-batch begins."""
UNASKED_SHARE = 2048
"""A child may add this share of a full page (8 KiB) to its open page before it has to ask for room again. So a shard
with a record a second wakes the host every few seconds, and not for each record. The host counts these
bytes later, so a micro-batch that waits for a number of bytes may have that much more of each shard.
"""


class SessionHost:
    """The whole state of the host. Called on one event loop only."""

    def __init__(
        self,
        settings: SparkSettings,
        directory: Path,
        daemon_pid: int,
        start: Callable[[SparkSettings, Path, Spool], Started],
        properties_file: str = "",
        scratch: Path | None = None,
    ) -> None:
        """Prepare the host. `directory` is for the socket and the status file, `scratch` for data (default:
        `directory`).

        Raises SpoolError.
        """
        self._start = start
        interval_s = max(settings.trigger_interval_s, settings.trigger_quiet_s)
        self._status = HostStatus(directory, settings.application, properties_file, daemon_pid, interval_s)
        self._settings = settings
        self._directory = directory
        self._scratch = scratch or directory
        self._daemon_pid = daemon_pid
        self._children: dict[int, ChildConnection] = {}
        """The connected children, by number."""
        self._numbers = 0
        """How many children have connected; the next one gets the next number."""
        self._started: Started | None = None
        """The session and its engine, once they have started."""
        self._spool = open_spool(settings.spool, self._scratch, settings.s3)
        self.offers = OfferQueue(settings, self._spool, self._children)
        self._thread = ThreadPoolExecutor(1, "spark")
        self._loop = MicroBatchLoop(self._children, self.offers, self._status, self._thread)
        self._ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.daemon_gone = False
        """Whether the daemon has ended; then the host ends, too, when no child is left."""
        self._failure: tuple[str, int] | None = None
        """Why the session ended for good, and the exit status, for children that come later."""

    # --- life --------------------------------------------------------------------------------------------------------

    async def run(self, listening: Callable[[], None]) -> int:
        """Serve children until the host has to end, and return its exit status. Call `listening`
        once they can connect.
        """
        loop = asyncio.get_running_loop()
        path = self._directory / SOCKET_FILE
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._accept, path, backlog=BACKLOG)
        path.chmod(0o600)
        watch_process(loop, self._daemon_pid, self.daemon_ended)
        listening()
        tasks = asyncio.ensure_future(self._work()), asyncio.ensure_future(self._loop.watch())
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
        """Start the session and run micro-batches. If that ends with an error, the host fails."""
        try:
            started = self._started = await self._start_session()
            if started.jvm_pid is not None:
                ended = partial(self._fail, "the JVM of the Spark session has ended")
                watch_process(asyncio.get_running_loop(), started.jvm_pid, ended)
                self._loop.jvm_pid = started.jvm_pid
            self._status.ready(started.about)
            for child in self._children.values():
                self._welcome(child)
            await self._loop.run(started.engine)
        except FatalError as error:
            self._fail(str(error), error.status, REFUSE_S)
        except SessionGone as error:
            self._fail(f"the Spark session is gone: {error}")
        except Exception:
            log.exception("the session host has a fault")
            self._fail("the session host has a fault; see its lines in the log")

    async def _start_session(self) -> Started:
        """Start the session within `mld.spark.startTimeoutMillis`. Raises FatalError."""
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
        """Send the reason to all children, also to those that connect within `refuse_s`, and then end the host."""
        log.error("%s", reason)
        self._failure = reason, status
        for child in list(self._children.values()):
            child.fail(reason, status)
        asyncio.get_running_loop().call_later(refuse_s, self._end, status)

    def _close(self) -> None:
        """Stop the session, or kill its JVM after CLOSE_WAIT_S. After this the process has to end."""
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
        """End the host, because the daemon has ended: at once if there are no children, else after LINGER_S."""
        self.daemon_gone = True
        log.info("the daemon has ended", extra={"action": "daemon_ended"})
        if self._children:
            asyncio.get_running_loop().call_later(LINGER_S, self._end, EXIT_OK)
        else:
            self._end(EXIT_OK)

    def _end(self, status: int) -> None:
        if not self._ending.done():
            self._ending.set_result(status)

    # --- children ----------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a child that has connected."""
        self._numbers += 1
        child = self._children[self._numbers] = ChildConnection(self, self._numbers, writer, self._settings.fit)
        await child.serve(reader)

    def hello(self, child: ChildConnection, head: dict[str, Any]) -> None:
        """Take the HELLO of a child. `head` is its body. An earlier child of the same shard has to end."""
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
        """Return whether the child reads another stream of the same name: the stream was deleted and made again.

        The sinks of this host are open for one of the two streams. If the child's stream is the newer one, fail the
        whole host, and a new host opens the sinks for the new stream. Otherwise fail only the child."""
        writer = self._settings.writer
        if writer is None or not (writer.created and arn and created) or (arn, created) == (writer.arn, writer.created):
            return False  # an identity without a creation time (mld.spark.streamId, several streams) is not compared
        reason = f"the stream {arn} was made at {created}, and this session was started for {writer.arn} of"
        reason = f"{reason} {writer.created}: it was deleted and made again"
        if str(created) > writer.created:
            self._fail(reason)
        else:
            child.fail(reason)
        return True

    def _welcome(self, child: ChildConnection) -> None:
        """Send READY to a child, once its HELLO has named its shard."""
        if child.shard is None:
            return
        page_bytes = min(PAGE_BYTES, self._settings.batch_bytes_max)
        child.send(
            link.READY,
            {
                "stream": child.shard.stream_name,
                "shard": child.shard.shard,
                "pages": self._spool.pages(child.number),
                "pageBytes": page_bytes,
                "unaskedBytes": page_bytes // UNASKED_SHARE,
                "drainMillis": int(1000 * self._settings.drain_timeout_s),
            },
        )

    def gone(self, child: ChildConnection) -> None:
        """Forget a child whose connection is closed."""
        del self._children[child.number]
        self.offers.drop(child)
        if self.daemon_gone and not self._children:
            self._end(EXIT_OK)

    def pass_on(self, text: str) -> bool:
        """Pass printed lines to the daemon's log, through the first child that can take them. Return False if none can
        now."""
        return any(child.send_printed(text) for child in self._children.values() if child.shard is not None)
