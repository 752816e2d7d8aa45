"""How long the shards of a worker of a 2.x fleet stay without a reader when it goes away, beside the bound.

Two workers share four shards, two each; a producer puts a record into every shard ten times a second, and the children
checkpoint every batch. Then one worker is stopped or killed, and the time counts from the signal to the first record in
the other worker's child, for each shard. Bounds (leases#taker-observation), with P = 2 x (failoverTimeMillis + 25 ms),
the taker's period: a released lease is seen free by the next pass, so P. A dead worker's lease counts as expired in the
pass after the one that has seen its last renewal: P to 2 P (2 to 4 x failover) after that renewal, which was up to a
third of the failover time before the kill. Both plus taking and the start of a child.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.process import SDK_CHILD, Daemon
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import Producer, make_stream
from tests.support.servers import EmbeddedAws

SHARDS = 4
SHARDS_EACH = SHARDS // 2
DEFAULT_FAILOVER_MS = 10_000
SHORT_FAILOVER_MS = 2_000
SHORT_REPEATS = 3
EPSILON_MS = 25
SPARE_S = 30.0  # beyond the bound before a run counts as failed
IDLE_READ_MS = 250  # so that the wait for a first record is not that of a poll


@dataclass(frozen=True, slots=True)
class Story:
    failover_ms: int
    graceful: bool
    repeats: int

    @property
    def period_s(self) -> float:
        return 2 * (self.failover_ms + EPSILON_MS) / 1000

    @property
    def bound_s(self) -> float:
        return self.period_s if self.graceful else 2 * self.period_s

    @property
    def name(self) -> str:
        return f"handover-{self.failover_ms}-{'stop' if self.graceful else 'kill'}"


@dataclass(frozen=True, slots=True)
class HandOver:
    """Seconds from the signal: until each shard's next record, and until the process was gone."""

    shards_s: tuple[float, ...]
    gone_s: float


# Tracks run side by side, as they mostly wait; the stories of a track one after the other. Leases of 2 s suffer first
# when the machine is busy, hence a track for both.
TRACKS = (
    (Story(DEFAULT_FAILOVER_MS, graceful=True, repeats=1),),
    (Story(DEFAULT_FAILOVER_MS, graceful=False, repeats=1),),
    (
        Story(SHORT_FAILOVER_MS, graceful=True, repeats=SHORT_REPEATS),
        Story(SHORT_FAILOVER_MS, graceful=False, repeats=SHORT_REPEATS),
    ),
)


def measure(aws: EmbeddedAws, scratch: Path) -> None:
    """Run all stories and print them."""
    before = load_average()
    with ThreadPoolExecutor(len(TRACKS)) as pool:
        tracks = pool.map(lambda track: [_row(story, _tell(aws, scratch, story)) for story in track], TRACKS)
        rows = [row for track in tracks for row in track]
    table(
        "Hand-over in 2.x mode: signal to one of two workers until the shard's next record in the other's child, s",
        ("end", "failover", "shards", "min", "median", "max", "bound", "process gone"),
        rows,
        "bound: P after SIGTERM, 2 P after kill -9, P = 2 x (failover + 25 ms), plus taking and the child's start\n"
        f"load average before {before}, after {load_average()}",
    )


def _row(story: Story, seen: Sequence[HandOver]) -> tuple[str, ...]:
    shards = [seconds for one in seen for seconds in one.shards_s]
    times = spread(shards)
    return (
        "SIGTERM" if story.graceful else "kill -9",
        f"{story.failover_ms / 1000:g}",
        str(len(shards)),
        *(f"{value:.2f}" for value in (times.min, times.median, times.max)),
        f"{story.bound_s:.2f}",
        f"{max(one.gone_s for one in seen):.2f}",
    )


def _tell(aws: EmbeddedAws, scratch: Path, story: Story) -> list[HandOver]:
    names = [f"{story.name}-{number}" for number in range(story.repeats)]
    return [_once(aws, scratch / name, story, name) for name in names]


def _once(aws: EmbeddedAws, scratch: Path, story: Story, stream: str) -> HandOver:
    kinesis = aws.client("kinesis")
    make_stream(kinesis, stream, SHARDS)

    def start(worker: str, **keys: str) -> Daemon:
        basic = {
            "executableName": SDK_CHILD,
            "applicationName": stream,
            "streamName": stream,
            "workerId": worker,
            "failoverTimeMillis": str(story.failover_ms),
            "clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1",
            "idleTimeBetweenReadsInMillis": str(IDLE_READ_MS),
        }
        return Daemon(scratch / worker, aws.endpoint, {**basic, **keys}, env={"BENCH_CHECKPOINTS": "1"})

    with Producer(aws, stream, SHARDS), start("leaving", maxLeasesForWorker=str(SHARDS_EACH)) as leaving:
        released = set(leaving.wait_for_records(SHARDS_EACH))
        with start("staying") as staying:
            staying.wait_for_records(SHARDS_EACH)
            signalled_at = leaving.stop() if story.graceful else leaving.kill()
            leaving.wait()
            gone_s = time.time() - signalled_at
            staying.wait_for(
                lambda: released <= set(staying.first_records(signalled_at)),
                story.bound_s + SPARE_S,
                f"{stream}: the other worker's records of {sorted(released)}",
            )
            first = staying.first_records(signalled_at)
    return HandOver(tuple(first[shard] - signalled_at for shard in sorted(released)), gone_s)
