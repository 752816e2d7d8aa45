"""A steady load on the stream of a world, and how long its records waited."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from tests.integration.world import World

RECORDS_PER_BATCH = 8
BATCH_INTERVAL_S = 0.4
RECORD_BYTES = 200  # some throughput: a fleet without any is balanced by other rules


class Load:
    """Puts records from a thread of its own while it is entered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._put_at: list[int] = []
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._errors, self._errors

    def _run(self) -> None:
        try:
            while not self._stop.wait(BATCH_INTERVAL_S):
                self._world.put(RECORDS_PER_BATCH, RECORD_BYTES)
                self._put_at += [time.monotonic_ns()] * RECORDS_PER_BATCH
        except Exception as error:
            self._errors.append(error)

    def longest_wait_s(self, since: int = 0) -> float:
        """How long the record that waited longest, of those put since then (CLOCK_MONOTONIC ns), was on its way to a
        child for the first time; one that has not arrived waits until now."""
        first: dict[tuple[str, int], int] = {}
        for life in self._world.history.lives():
            for record in life.delivered:
                place = (life.shard, record.sequence)
                first[place] = min(first.get(place, record.at), record.at)
        now = time.monotonic_ns()
        pairs = zip(self._put_at, self._world.puts, strict=False)
        waits = [first.get((put.shard, put.sequence), now) - at for at, put in pairs if at >= since]
        return max(waits, default=0) / 1e9
