"""How long shards stay without a reader in a fleet in 3.x mode: at a start, handoff, stop and kill -9.

One chain of stories has a stream of its own with four shards, a record a shard ten times a second, and checkpoints
after every batch. A worker starts on nothing; a second one joins, gets two shards by handoff and is stopped; a third
one joins and is killed; a fourth one joins, and the leader is stopped; a fifth one joins, and the leader is killed.

A gap at a stop or kill counts from the signal to the first record in another worker's child, for each shard the worker
had; at a handoff from the last record in the old owner's child to the first in the new one's. Workers are killed as
soon as the one that joined has its share: from the first look of a worker on the bound is the failover time and 2 s.

Leases are balanced by count. By utilization a second worker on the same machine would get nothing: both report the same
processors. How a lease moves does not depend on why.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.process import SDK_CHILD, BenchError, Daemon
from tests.benchmarks.tables import load_average, spread, table
from tests.benchmarks.world import Producer, make_stream
from tests.support.servers import EmbeddedAws

SHARDS = 4
SHARDS_EACH = SHARDS // 2
FAILOVERS_MS = (10_000, 2_000)
IDLE_READ_MS = 250  # so that the wait for a first record is not that of a poll
STAGGER_S = 7.0  # between two chains, so that they do not start their daemons together
JOIN_TIMEOUT_S = 120.0
SPARE_S = 60.0  # beyond the target before a story counts as failed

FRESH, JOIN, HANDOFF, STOP, STOP_LEADER, KILL, KILL_LEADER = (
    "fresh table to first record",
    "joining worker to its last share",
    "handoff between living workers",
    "SIGTERM, follower",
    "SIGTERM, leader",
    "kill -9, follower",
    "kill -9, leader",
)


def targets(failover_ms: int) -> Mapping[str, float | None]:
    """Seconds."""
    killed = failover_ms / 1000 + 2.0
    return {FRESH: 3.0, HANDOFF: 2.0, STOP: 2.0, STOP_LEADER: 2.0, KILL: killed, KILL_LEADER: killed, JOIN: None}


Seen = dict[str, list[float]]


@dataclass(slots=True)
class Chain:
    """One stream, one table, and what was seen of them."""

    aws: EmbeddedAws
    scratch: Path
    name: str
    failover_ms: int
    seen: Seen = field(default_factory=lambda: defaultdict(list))
    started: int = 0

    def start(self, worker: str) -> Daemon:
        self.started += 1
        keys = {
            "executableName": SDK_CHILD,
            "applicationName": self.name,
            "streamName": self.name,
            "workerId": worker,
            "failoverTimeMillis": str(self.failover_ms),
            "idleTimeBetweenReadsInMillis": str(IDLE_READ_MS),
            "mld.leaseAssignmentStrategy": "count",
        }
        directory = self.scratch / self.name / f"{self.started}-{worker}"
        return Daemon(directory, self.aws.endpoint, keys, env={"BENCH_CHECKPOINTS": "1"})

    def run(self) -> Seen:
        make_stream(self.aws.client("kinesis"), self.name, SHARDS)
        daemons: list[Daemon] = []
        try:
            with Producer(self.aws, self.name, SHARDS):
                time.sleep(1.0)  # the first record is there before the first worker
                self._tell(daemons)
        finally:
            for daemon in daemons:
                daemon.close()
        return self.seen

    def _tell(self, daemons: list[Daemon]) -> None:
        first = self._started(daemons, "first")
        records = first.wait_for_records(SHARDS)
        self.seen[FRESH] += [at - first.executed_at for at in records.values()]

        second = self._join(daemons, "second", first)
        self._end(second, first, STOP)
        third = self._join(daemons, "third", first)
        self._end(third, first, KILL)
        fourth = self._join(daemons, "fourth", first)
        self._end(first, fourth, STOP_LEADER)
        fifth = self._join(daemons, "fifth", fourth)
        self._end(fourth, fifth, KILL_LEADER)

    def _started(self, daemons: list[Daemon], worker: str) -> Daemon:
        daemon = self.start(worker)
        daemons.append(daemon)
        return daemon

    def _join(self, daemons: list[Daemon], worker: str, leader: Daemon) -> Daemon:
        """Start a worker and wait until it has its share by handoff."""
        joining = self._started(daemons, worker)
        came = joining.wait_for_records(SHARDS_EACH, JOIN_TIMEOUT_S)
        self.seen[JOIN].append(max(came.values()) - joining.executed_at)
        for shard, at in came.items():
            before = [mark.at for mark in leader.marks() if mark.shard == shard and mark.event == "records"]
            self.seen[HANDOFF].append(at - max(moment for moment in before if moment < at))
        return joining

    def _end(self, leaving: Daemon, staying: Daemon, how: str) -> None:
        """Stop or kill one worker and wait until the other has a record of each of its shards."""
        had = _served_by(leaving, staying)
        if not had:
            raise BenchError(f"{self.name}: {how}: the worker has no shards; see {leaving.log_file}")
        is_kill = how in (KILL, KILL_LEADER)
        signalled_at = leaving.kill() if is_kill else leaving.stop()
        leaving.wait()
        target = targets(self.failover_ms)[how] or 0.0
        staying.wait_for(
            lambda: had <= set(staying.first_records(signalled_at)),
            target + SPARE_S,
            f"{self.name}: {how}: the other worker's records of {sorted(had)}",
        )
        came = staying.first_records(signalled_at)
        self.seen[how] += [came[shard] - signalled_at for shard in had]


def _served_by(one: Daemon, other: Daemon) -> set[str]:
    """The shards whose last records went to `one`: not those that the other has had by a handoff just now."""
    last, elsewhere = ({mark.shard: mark.at for mark in daemon.marks() if mark.count} for daemon in (one, other))
    return {shard for shard, at in last.items() if at > elsewhere.get(shard, 0.0)}


def measure(aws: EmbeddedAws, scratch: Path, runs: int) -> None:
    """Run the chains of each failover time side by side, and print what was seen."""
    for failover_ms in FAILOVERS_MS:
        before = load_average()
        with ThreadPoolExecutor(runs) as pool:
            chains = [Chain(aws, scratch, f"gaps-{failover_ms}-{number}", failover_ms) for number in range(runs)]
            seen = list(pool.map(_run_later, chains, range(runs)))
        rows = _rows(seen, failover_ms)
        table(
            f"Fleet in 3.x mode, failover {failover_ms / 1000:g} s: seconds without a reader, by shard, {runs} chains",
            ("what", "shards", "min", "median", "max", "target", "above it"),
            rows,
            f"load average before {before}, after {load_average()}",
        )


def _run_later(chain: Chain, number: int) -> Seen:
    time.sleep(number * STAGGER_S)
    try:
        return chain.run()
    except BenchError as error:
        print(f"chain {chain.name} ended early: {error}")
        return chain.seen


def _rows(seen: Sequence[Seen], failover_ms: int) -> list[tuple[str, ...]]:
    rows = []
    for what, target in targets(failover_ms).items():
        gaps = [gap for one in seen for gap in one[what]]
        if not gaps:
            continue
        times = spread(gaps)
        above = "" if target is None else str(sum(gap > target for gap in gaps))
        figures = (f"{value:.2f}" for value in (times.min, times.median, times.max))
        rows.append((what, str(len(gaps)), *figures, "-" if target is None else f"{target:g}", above))
    return rows
