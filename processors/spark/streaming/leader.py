"""The leader: the one host at a time that runs the queries over the inbox, on a thread of its own.

Every host of the streaming mode has this thread. While somebody waits in its host for a batch, it tries to take the
lead; once it has it, it goes on for all workers until the queries fail or the host ends. `progress` in the checkpoint
tells everybody how far the queries are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from mld.processors.spark.batch.attempts import BACKOFF_MIN_S, pause_s
from mld.processors.spark.commit_stages import stage
from mld.processors.spark.pipeline import PipelineError, PipelineFailed
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused
from mld.processors.spark.streaming.inbox import Inbox, LeadLock
from mld.processors.spark.streaming.queries import Queries

log = logging.getLogger("mld.spark")

POLL_S = 0.1
"""How often those who wait look for the progress of a leader elsewhere, and a leader for batches of others."""
KEEP_S = 60.0
"""A file stays so long after its commit: the last batch of a leader that has just been killed may still look for it on
another machine, and Spark takes a file that is gone for an empty one."""
END_WAIT_S = 8.0
"""A query that takes longer to stop ends with its JVM."""


class QueryFailed(Exception):
    """The queries have failed again and again, or can never succeed; one sentence."""


class QueryLeader:
    """`wait_for` is called on the host's working thread, `end` on any."""

    def __init__(
        self,
        inbox: Inbox,
        lead: LeadLock,
        queries: Queries,
        *,
        attempts_max: int,
        backoff_s: float,
        poll_s: float = POLL_S,
        keep_s: float = KEEP_S,
    ) -> None:
        self._inbox = inbox
        self._lead = lead
        self._queries = queries
        self._attempts_max = attempts_max
        self._backoff_s = max(backoff_s, BACKOFF_MIN_S)
        self._poll_s = poll_s
        self._keep_s = keep_s
        self._kept: deque[tuple[float, int]] = deque()
        self._leads = False
        self._wanted = 0
        self._failures = 0
        self._failure = ""
        self._done = 0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="streaming", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            threading.Thread(target=self._queries.stop, daemon=True).start()  # wakes it out of a batch
            self._thread.join(END_WAIT_S)

    def wait_for(self, number: int, check: Callable[[], None]) -> None:
        """Wait until every query has committed this number of the inbox. Raises QueryFailed, and what `check` does."""
        with self._changed:
            failures = self._failures
            self._wanted = max(self._wanted, number)
            self._wake.set()
            while max(self._done, self._inbox.progress()) < number:
                if self._failures > failures:
                    raise QueryFailed(self._failure)
                check()
                self._changed.wait(self._poll_s)

    def late_rows(self) -> int:
        """Return how many rows the queries of this host have left out as late, since it started."""
        return self._queries.late_rows()

    def watermarks(self) -> Mapping[str, str]:
        """Return the watermarks of the queries of this host, while it leads."""
        return self._queries.watermarks() if self._leads else {}

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._step()
            except SinkError as error:
                log.error("%s", error)
                self._stopping.wait(self._backoff_s)
            except Exception as error:
                log.exception("the streaming queries have a fault")
                self._give_up(f"the streaming queries have a fault: {type(error).__name__}: {error}")
            self._wake.wait(self._poll_s)
            self._wake.clear()
        self._queries.stop()
        self._lead.release()

    def _step(self) -> None:
        if not self._leads:
            if self._wanted <= self._inbox.progress() or not self._lead.take():
                return
            self._leads = True
            self._done = self._inbox.progress()
            self._kept = deque([(time.monotonic() + self._keep_s, self._done)])
            log.info("this host runs the streaming queries", extra={"action": "lead_taken"})
        self._clear()
        if self._inbox.number() <= self._done:
            return
        try:
            self._process(self._done)
        except (SinkRefused, PipelineError) as error:
            self._give_up(str(error))

    def _process(self, progress: int) -> None:
        """Have everything committed that is in the inbox now, with new attempts if need be."""
        failures = 0
        while not self._stopping.is_set():
            try:
                self._attempt(progress)
                return
            except SinkRefused:
                raise
            except (JobFailed, PipelineFailed) as error:
                if self._stopping.is_set():
                    return
                failures += 1
                if failures >= self._attempts_max:
                    self._give_up(f"{error}; a stateful query cannot leave out a record: correct the pipeline")
                    return
                log.warning("attempt %d of %d: %s", failures, self._attempts_max, error)
            except SinkError as error:
                log.error("%s; trying again", error)
            self._stopping.wait(pause_s(self._backoff_s, failures + 1))

    def _attempt(self, progress: int) -> None:
        head = self._inbox.open()
        assert head is not None
        here = self._inbox.pending()
        self._inbox.settle()
        self._queries.start()
        self._queries.process()
        stage("processed")
        mine = [number for number in here if progress < number <= head.number]
        if untaken := self._queries.untaken(mine):
            raise SinkRefused(
                f"the streaming queries have passed over {len(untaken)} batches of the inbox, from {min(untaken)} on; "
                "nothing of them is acknowledged: restore mld.spark.checkpoint, or use a new directory"
            )
        self._inbox.advance(head.number)
        stage("advanced")
        self._kept.append((time.monotonic() + self._keep_s, head.number))
        self._clear()
        with self._changed:
            self._done = head.number
            self._changed.notify_all()

    def _clear(self) -> None:
        """Remove what has been committed long enough, and only then let Spark forget that it has taken it."""
        number = 0
        while self._kept and self._kept[0][0] <= time.monotonic():
            _, number = self._kept.popleft()
        if number:
            self._inbox.clear(number)
            self._queries.trim(min([number, *(found - 1 for found in self._inbox.pending())]))

    def _give_up(self, reason: str) -> None:
        """Let others try; who waits here hears the reason."""
        self._queries.stop()
        self._lead.release()
        self._leads = False
        with self._changed:
            self._wanted = 0
            self._failure = reason
            self._failures += 1
            self._changed.notify_all()
