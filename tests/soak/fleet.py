"""``python -m tests.soak.fleet``: three real daemons for minutes on a machine kept busy. What `make soak-fleet` runs.

Daemons are killed, frozen, stopped and started again, their children are killed, shards split and merged, as a seed
draws it, while a producer puts records and other processes use up the processors. Then the fleet is left alone, still
on the busy machine: all that was put has to be delivered and checkpointed, however slowly, but with fewer records open
after each minute. Every checker of `tests.integration.history` has to hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Any

from mld.core.positions import Position
from mld.leases.lease import Lease
from tests.integration.history import Life, Put, check_all, children_after_parents
from tests.integration.world import World
from tests.soak.shared import Repeated, SoakError
from tests.support.daemon import Daemon
from tests.support.servers import EmbeddedAws
from tests.support.wiretap import RowWrite

WORKERS = 3
SHARDS_MIN, SHARDS_MAX = 4, 10
PUT_EVERY_S = 0.3
PUT_MAX = 20
LOOK_EVERY_S = 0.5
REPORT_EVERY_S = 60.0
PROGRESS_S = 60.0
"""In the calm fewer records have to be open after so long."""
ACT_AFTER_S = (2.0, 12.0)
AWAY_S = (0.0, 15.0)
FROZEN_S = (1.0, 20.0)
"""Shorter and longer than a lease lasts."""
ACTS = {"kills": 2, "kills of children": 2, "pauses": 3, "restarts": 2, "reshards": 4}
CHILD_BATCH_S = 0.2
"""What a child needs, so that kills find it at work."""
IN_START_SHARE = 0.1
"""Of the acts against a daemon that still starts. With more of them none would ever come to work on a slow machine."""
HAS_BEGUN = "client_version"
START_S_MAX = 600.0
STOPPED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
"""In good order; with children killed after the grace; before it had begun."""
SPIN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
NS = 1_000_000_000


# --- judging, on plain values ----------------------------------------------------------------------------------------


class Progress:
    """Raises SoakError when the count has not fallen for `within_s`."""

    def __init__(self, within_s: float = PROGRESS_S) -> None:
        self._within_s = within_s
        self._least: int | None = None
        self._since_s = 0.0

    def note(self, at_s: float, count: int) -> None:
        if self._least is None or count < self._least:
            self._least, self._since_s = count, at_s
        elif at_s - self._since_s > self._within_s:
            raise SoakError(f"livelock: {count} records are open, and were {at_s - self._since_s:.0f} s ago")


class Ownerless:
    """Measures how long rows belong to nobody, or to a worker that is dead or frozen."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._since_s: dict[str, float] = {}

    def look(self, at_s: float, leases: Mapping[str, Lease], alive: set[str]) -> None:
        orphans = {key for key, lease in leases.items() if not lease.is_complete and lease.owner not in alive}
        self._since_s = {key: self._since_s.get(key, at_s) for key in orphans}
        self.longest_s = max([self.longest_s, *(at_s - since_s for since_s in self._since_s.values())])


def still_open(puts: Sequence[Put], delivered: set[tuple[str, int]], leases: Mapping[str, Lease]) -> int:
    """Count the records that no child got, or that no checkpoint covers. A row that was cleaned up was complete."""
    checkpoints = {key: lease.checkpoint for key, lease in leases.items()}
    return sum(
        (put.shard, put.sequence) not in delivered
        or (put.shard in checkpoints and checkpoints[put.shard] < Position(str(put.sequence)))
        for put in puts
    )


def first_deliveries(lives: Sequence[Life]) -> list[Life]:
    """Keep what came for the first time: a worker that was frozen may repeat records after their shard has ended."""
    first: dict[tuple[str, int], int] = {}
    for life in lives:
        for record in life.delivered:
            first[life.shard, record.sequence] = min(record.at, first.get((life.shard, record.sequence), record.at))
    return [
        replace(life, delivered=[one for one in life.delivered if one.at == first[life.shard, one.sequence]])
        for life in lives
    ]


def moves(writes: Sequence[RowWrite]) -> int:
    """Count how often rows went from one worker to another."""
    owners: dict[str, list[str]] = {}
    for write in sorted(writes, key=attrgetter("counter")):
        if write.owner is not None:
            owners.setdefault(write.key, []).append(write.owner)
    return sum(before != after for of_row in owners.values() for before, after in pairwise(of_row))


def longest_wait_s(put_at: Mapping[tuple[str, int], int], lives: Sequence[Life]) -> float:
    """Return the longest time from a put to the first delivery."""
    waits = (one.at - put_at[life.shard, one.sequence] for life in first_deliveries(lives) for one in life.delivered)
    return max(waits, default=0) / NS


# --- the fleet -------------------------------------------------------------------------------------------------------


class Producer(Repeated):
    """Puts batches of drawn sizes until it is stopped."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__("producer", PUT_EVERY_S)
        self.put_at: dict[tuple[str, int], int] = {}
        self._world = world
        self._rng = rng

    def once(self) -> None:
        at = time.monotonic_ns()
        new = self._world.put(self._rng.randint(1, PUT_MAX))
        self.put_at.update({(put.shard, put.sequence): at for put in new})


@dataclass(slots=True)
class Seat:
    """One of the three workers. `back_at_s` is when it is thawed or started again; None while it runs."""

    worker: str
    daemon: Daemon
    back_at_s: float | None = None
    is_frozen: bool = False


class FleetSoak:
    def __init__(self, world: World, seed: int, failover_ms: int, children: int) -> None:
        self.counts: Counter[str] = Counter()
        self.ownerless = Ownerless()
        self.producer = Producer(world, Random(f"{seed} puts"))
        self._world = world
        self._rng = Random(seed)
        self._keys = {"failoverTimeMillis": failover_ms, "mld.childrenPerShard": children}
        self._seats = [Seat(f"w{n}", self._start(f"w{n}")) for n in range(1, WORKERS + 1)]
        self._workers = WORKERS
        self._report_at_s = time.monotonic() + REPORT_EVERY_S

    def _start(self, worker: str) -> Daemon:
        return self._world.daemon(worker, self._world.recorder(pause_s=CHILD_BATCH_S), **self._keys)

    # --- minutes of trouble

    def trouble(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        act_at_s = 0.0
        self.producer.start()
        while (now_s := time.monotonic()) < end_s:
            self._look(now_s)
            if now_s > act_at_s:
                self._act(self._rng.choices(list(ACTS), list(ACTS.values()))[0])
                act_at_s = time.monotonic() + self._rng.uniform(*ACT_AFTER_S)
            time.sleep(LOOK_EVERY_S)
        self.producer.stop()

    def calm(self) -> None:
        """Bring everybody back, then wait. Raises SoakError where nothing gets on."""
        for seat in self._seats:
            if seat.back_at_s is not None:
                seat.back_at_s = 0.0
        progress = Progress()
        self._look(time.monotonic())
        for seat in self._seats:
            seat.daemon.wait_for_event(HAS_BEGUN, START_S_MAX)
        while count := self._open():
            progress.note(time.monotonic(), count)
            time.sleep(LOOK_EVERY_S)
            self._look(time.monotonic())

    def stop(self) -> None:
        for seat in self._seats:
            self._stop(seat)

    def _open(self) -> int:
        leases = self._world.leases()  # before the deliveries, which only grow
        return still_open(list(self._world.puts), self._world.history.delivered(), leases)

    def _look(self, now_s: float) -> None:
        for seat in self._seats:
            if seat.back_at_s is None and seat.daemon.process.poll() is not None:
                raise SoakError(f"{seat.worker} ended by itself\n{seat.daemon.tail()}")
            if seat.back_at_s is not None and now_s >= seat.back_at_s:
                self._bring_back(seat)
        alive = {seat.worker for seat in self._seats if seat.back_at_s is None}
        self.ownerless.look(now_s, self._world.leases(), alive)
        if now_s > self._report_at_s:
            self._report_at_s = now_s + REPORT_EVERY_S
            acts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
            print(f"{len(self._world.puts):,} records put, {self._open():,} open; {acts}", flush=True)

    def _bring_back(self, seat: Seat) -> None:
        if seat.is_frozen:
            seat.daemon.thaw()
        else:
            seat.daemon = self._start(seat.worker)
        seat.back_at_s, seat.is_frozen = None, False

    # --- acts

    def _act(self, act: str) -> None:
        running = [seat for seat in self._seats if seat.back_at_s is None]
        seat = self._rng.choice(running)
        if act in ("kills", "pauses") and len(running) == 1:
            return
        has_begun = bool(seat.daemon.with_action(HAS_BEGUN))
        if act != "reshards" and not has_begun and self._rng.random() > IN_START_SHARE:
            return
        match act:
            case "kills":
                self._kill(seat)
            case "kills of children":
                children = [pid for pid in seat.daemon.survivors() if pid != seat.daemon.process.pid]
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(self._rng.choice(children), signal.SIGKILL)
            case "pauses":
                seat.daemon.freeze()
                seat.back_at_s, seat.is_frozen = time.monotonic() + self._rng.uniform(*FROZEN_S), True
            case "restarts":
                self._stop(seat)
                seat.daemon = self._start(seat.worker)
            case _:
                act = self._reshard()
        self.counts[act] += 1

    def _kill(self, seat: Seat) -> None:
        """The next one comes under the same name or, as pods do, under one of its own."""
        seat.daemon.kill()
        seat.back_at_s = time.monotonic() + self._rng.uniform(*AWAY_S)
        if self._rng.random() < 0.5:
            self._workers += 1
            seat.worker = f"w{self._workers}"

    def _stop(self, seat: Seat) -> None:
        code = seat.daemon.stop()
        self.counts["stops out of time"] += code != 0
        if code not in STOPPED:
            raise SoakError(f"{seat.worker} stopped with exit code {code}\n{seat.daemon.tail()}")

    def _reshard(self) -> str:
        shards = [one for one in self._world.shards() if "EndingSequenceNumber" not in one["SequenceNumberRange"]]
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        ids = [str(shard["ShardId"]) for shard in shards]
        if len(ids) == SHARDS_MIN or (len(ids) < SHARDS_MAX and self._rng.random() < 0.5):
            self._world.split(self._rng.choice(ids))
            return "splits"
        self._world.merge(*self._rng.choice(list(pairwise(ids))))
        return "merges"

    # --- the end

    def check(self) -> None:
        lives = self._world.history.lives()
        check_all(self._world.puts, lives, self._world.writes)
        children_after_parents(first_deliveries(lives), self._world.parents)

    def figures(self) -> dict[str, Any]:
        lives = self._world.history.lives()
        deliveries = sum(len(life.delivered) for life in lives)
        again = deliveries - len(self._world.history.delivered())
        errors = Counter(
            event["action"]
            for daemon in self._world.daemons
            for event in daemon.events
            if event.get("level") == "ERROR"
        )
        return {
            "records": len(self._world.puts),
            "shards": len(self._world.parents),
            **self.counts,
            "children": len(lives),
            "delivered again": f"{again} ({again / max(deliveries, 1):.1%})",
            "lease moves": moves(self._world.writes),
            "longest without a living owner, s": round(self.ownerless.longest_s, 1),
            "longest wait for a first delivery, s": round(longest_wait_s(self.producer.put_at, lives), 1),
            "logged as ERROR": dict(errors),
        }


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    spinning = [subprocess.Popen([sys.executable, "-S", "-c", SPIN]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def keep(world: World) -> None:
    """Write what tells the cause of a failure beside the children's records."""
    for daemon in world.daemons:
        (world.directory / f"{daemon.name}.log").write_text(daemon.log())
    writes = (json.dumps(asdict(write)) for write in world.writes)
    (world.directory / "writes.jsonl").write_text("\n".join(writes))
    print(f"logs, children's records and row writes: {world.directory}", file=sys.stderr)


def run(
    minutes: float, *, failover_ms: int, busy_processes: int, seed: int, children: int, keeps: bool = False
) -> dict[str, Any]:
    """Return the figures. Raises SoakError or AssertionError; logs are kept then, and with `keeps`."""
    directory = Path(tempfile.mkdtemp(prefix="mld-soak-"))
    with busy(busy_processes), EmbeddedAws() as aws:
        world = World(aws, directory, shards=SHARDS_MIN)
        try:
            soak = FleetSoak(world, seed, failover_ms, children)
            soak.trouble(minutes * 60)
            began_s = time.monotonic()
            soak.calm()
            took_s = time.monotonic() - began_s
            soak.stop()
            soak.check()
            figures = {**soak.figures(), "until all was checkpointed in the calm, s": round(took_s, 1)}
        except BaseException:
            keeps = True
            raise
        finally:
            if keeps:
                keep(world)
            world.close()
    if not keeps:
        shutil.rmtree(directory)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak-fleet", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of trouble (default: %(default)s)")
    parser.add_argument("--failover-ms", type=int, default=5_000, help="failoverTimeMillis (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=2, help="processes that only use CPU (default: %(default)s)")
    parser.add_argument("--children", type=int, default=1, help="mld.childrenPerShard (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep logs and records without a failure, too")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and leave nothing behind
    figures = run(
        given.minutes,
        failover_ms=given.failover_ms,
        busy_processes=given.busy,
        seed=given.seed,
        children=given.children,
        keeps=given.keep,
    )
    print("\n".join(f"{name}: {figure}" for name, figure in figures.items()))


if __name__ == "__main__":
    main()
