"""Runs one micro-batch after the other on the thread of Spark, and reports the result of each to children and log.

`offers` collects the pages of a micro-batch, and `batch.engine` runs it. Meanwhile `watch` reports how long records
have waited, and logs an error if a micro-batch does not end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import NoReturn

from mld.processors.spark import link
from mld.processors.spark.batch.engine import Engine
from mld.processors.spark.batch.micro_batch import MicroBatch, Offer, plan
from mld.processors.spark.batch.outcome import BatchOutcome
from mld.processors.spark.high_water_marks import fresh
from mld.processors.spark.host.connection import ChildConnection
from mld.processors.spark.host.host_status import HostStatus, counted
from mld.processors.spark.host.offers import OfferQueue
from mld.processors.spark.positions import StreamShard
from mld.processors.spark.writer_identity import PIPELINE_KEY

log = logging.getLogger("mld.spark")
WRITE_EVERY_S = 5.0
"""How often `watch` writes the status file, also while no micro-batch ends."""
STALLED_S = 120.0
"""If a micro-batch takes longer than this, an error is logged, and again each time the duration has doubled."""


class MicroBatchLoop:
    """The micro-batches of one host. Called on the host's event loop only."""

    def __init__(
        self, children: Mapping[int, ChildConnection], offers: OfferQueue, status: HostStatus, thread: Executor
    ) -> None:
        self._children = children
        self._offers = offers
        self._status = status
        self._thread = thread
        self.jvm_pid: int | None = None
        """Process id of the JVM, if this host has started one. It is named in the log if a micro-batch does not end."""
        self.last_start = -1e9
        """When the last micro-batch began, in seconds of the monotonic clock; long ago if there was none."""
        self._is_running = False

    async def run(self, engine: Engine) -> NoReturn:
        """Run micro-batches until the task is cancelled. Raises SessionGone and Stopped."""
        while True:
            await self._offers.due(self.last_start)
            self.last_start, self._is_running = time.monotonic(), True
            try:
                if taken := await self._offers.take():
                    await self._run_batch(taken, engine)
                await self._end_shards(engine)
            finally:
                self._offers.clear()
            self._is_running = False

    async def watch(self) -> NoReturn:
        """Write to the status file how long records have waited, and log an error while a micro-batch does not end.

        The micro-batch is not ended: a slow job looks like one that hangs, and a new session would write to the
        same slow sink.
        """
        stalled_s = STALLED_S
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            now = time.monotonic()
            times = [at for child in self._children.values() if (at := child.waiting_since) is not None]
            trigger_s = now - self.last_start if self._is_running else None
            self._status.waits(now - min(times) if times else None, trigger_s)
            if trigger_s is None or trigger_s < STALLED_S:
                stalled_s = STALLED_S
            elif trigger_s >= stalled_s:
                stalled_s *= 2
                log.error(
                    "a trigger has not ended for %.0f s, and nothing is committed: Spark is slow, waits for a sink, or "
                    "hangs (its UI, or jstack %s, shows it); if it hangs, end that process, and a new session begins "
                    "at the checkpoints",
                    trigger_s,
                    self.jvm_pid or "of the driver",
                )

    async def _run_batch(self, taken: list[Offer], engine: Engine) -> None:
        """Run the pages that were taken, except pages of children that are gone.

        The records of such a child were not checkpointed, so the daemon delivers them again. To run them now would be
        wrong if records before them are not committed yet.
        """
        started = self.last_start
        offers = [offer for offer in taken if offer.link in self._children]
        marks = {o.shard: mark for o in offers if (mark := engine.mark_of(o.shard)) is not None}
        batch = plan(offers, marks)
        # Here only the sinks count, not the dead letter: a page that all sinks hold makes no rows again.
        repeated = sum(offer.records for offer in offers if not fresh(offer.last, engine.held(offer.shard)))
        outcome = await asyncio.get_running_loop().run_in_executor(self._thread, engine.run, batch)
        outcome.figures.dropped = repeated
        self._report(batch, outcome, started)
        self._answer(batch, outcome)

    async def _end_shards(self, engine: Engine) -> None:
        """Make all sinks note that shards have ended, for the children that have asked for that, and let these children
        continue. A child whose shard cannot end gets the reason.
        """
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
        """Report to each child that its pages are committed, or why its shard stops."""
        for offer in batch.offers:
            child = self._children.get(offer.link)
            reason = outcome.failed.get(offer.shard)
            if child is not None and reason is not None:
                child.fail(reason)
            elif child is not None:
                child.commit(offer.number)
        self._say_failed(outcome.failed)

    def _say_failed(self, failed: Mapping[StreamShard, str]) -> None:
        """Log each shard that stops, with the reason."""
        for shard, reason in failed.items():
            log.error("%s stops: %s", shard.label, reason)

    def _report(self, batch: MicroBatch, outcome: BatchOutcome, started: float) -> None:
        """Log the micro-batch in one line of figures, and count it in the status. If records were delivered again that
        all sinks hold, warn that they are not written again. `started` is the monotonic time of its beginning.
        """
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
        fields = {
            "shards": len(batch.ends),
            **counts,
            **{f"{name}_ms": int(1000 * seconds) for name, seconds in took.items()},
            "lag_ms": max((lag for lag in lags.values() if lag is not None), default="?"),
        }
        log.info("trigger: %s", " ".join(f"{name}={value}" for name, value in fields.items()))
