"""One run of the proof: writers that are killed, held and crowded from a seed, then what is in the sink.

A run goes through a few rounds. Each is one of: a writer killed at a stage of its nth commit; two writers of different
shards at once, one of them killed; a zombie, held at a stage while another writer writes the rest, then let go; the JVM
killed under a writer; no room in the file system. A last writer finishes. Then every record is counted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mld.processors.spark.commit.faults import VARIABLE
from tests.prove_spark.jvm import Bare, Jvm, with_jars
from tests.prove_spark.writer import FULL
from tests.support.maven import Jar

BEFORE_COMMIT = ("opening", "staging", "staged", "durable", "entry")
AFTER_COMMIT = ("committed", "moving", "moved", "done", "acknowledged")
STAGES = BEFORE_COMMIT + AFTER_COMMIT
NAIVE_STAGES = ("opening", "staging", "staged", "acknowledged")
ROUNDS = ("kill", "kill", "kill", "pair", "zombie", "zombie", "jvm", "full")
SHARDS = ("0", "1", "2")
WRITER_WAIT_S = 900.0
"""A machine that does other things besides may be ten times slower; a hang is what this is to find."""
HELD_WAIT_S = 300.0
KILLED = -9
POLL_S = 0.02
ROOM_BYTES = 2 * 1024 * 1024


@dataclass
class Outcome:
    """What happened in a run, and what was wrong in the end."""

    seed: int
    layout: str
    killed: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    fenced: int = 0
    records: int = 0
    duplicates: int = 0
    missing: int = 0
    stopped: int = 0
    """Writers that ended as they should not: what they had left is not in the sink."""
    faults: list[str] = field(default_factory=list)

    def count(self, found: Counter[tuple[str, int]], wanted: set[tuple[str, int]] | None = None) -> None:
        """What a sink has, and (if it is known) all that it should have. A run looks several times."""
        self.records = len(found)
        self.duplicates = max(self.duplicates, sum(count - 1 for count in found.values()))
        if wanted is not None:
            self.missing = len(wanted - set(found))
            if strangers := set(found) - wanted:
                self.faults.append(f"records from nowhere: {sorted(strangers)[:3]}")

    @property
    def exactly_once(self) -> bool:
        return not (self.duplicates or self.missing or self.faults)

    @property
    def lost_or_doubled(self) -> bool:
        """Whether this was the sink's doing. What is missing because a writer stopped was never written."""
        return self.duplicates > 0 or (self.missing > 0 and not self.stopped)


class Machine:
    """Starts writers against one JVM, and a new JVM when it has died."""

    def __init__(self, jars: Iterable[Jar] = ()) -> None:
        """`jars` are what the JVM needs besides Spark."""
        self._options = with_jars(jars)
        self.jvm = Jvm(self._options)
        self._spare: Bare | None = None

    def spare(self) -> Bare:
        """Another JVM, whose session no one but a writer uses."""
        self._spare = self._spare or Bare(self._options)
        return self._spare

    def kill_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def kill_jvm(self) -> None:
        self.jvm.kill()
        self.jvm = Jvm(self._options)

    def start(
        self, plan: dict[str, Any], fault: str | None, *, module: str = "writer", jvm: Bare | None = None
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, **(jvm or self.jvm).environment}
        environment.pop(VARIABLE, None)
        if fault:
            environment[VARIABLE] = fault
        command = [sys.executable, "-m", f"tests.prove_spark.{module}", json.dumps(plan)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


class Run:
    def __init__(self, seed: int, layout: str, machine: Machine, root: Path) -> None:
        self._rng = random.Random(f"{layout} {seed}")
        self._machine = machine
        self._root = root
        self._room = root / "room"
        self._checkpoints = root / "checkpoints"
        self._lasts = {shard: self._rng.randint(20, 60) for shard in SHARDS}
        self._room_bytes = ROOM_BYTES
        self._stages: tuple[str, ...] = NAIVE_STAGES if layout == "naive" else STAGES
        self._kinds: tuple[str, ...] = ("kill",) if layout == "naive" else ROUNDS
        self.outcome = Outcome(seed, layout)

    def play(self) -> Outcome:
        self._checkpoints.mkdir(parents=True)
        drawn = [self._rng.choice(self._kinds) for _ in range(self._rng.randint(2, 4))]
        with room(self._room, self._room_bytes if "full" in drawn else 0) as limited:
            for kind in drawn:
                if kind != "full" or limited:
                    self.outcome.rounds[kind] += 1
                    self._round(kind)
                    self._count(final=False)
            self._expect(self._writer(SHARDS, None), 0)
            self._count(final=True)
        return self.outcome

    def _round(self, kind: str) -> None:
        rounds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "pair": self._pair,
            "zombie": self._zombie,
            "jvm": self._jvm,
            "full": self._full,
        }
        rounds[kind]()

    def _kill(self) -> None:
        stage = self._rng.choice(self._stages)
        self._end(self._writer(SHARDS, f"kill@{stage}#{self._nth(stage)}"), stage)

    def _pair(self) -> None:
        stage = self._rng.choice(self._stages)
        one = self._writer(SHARDS[:1], f"kill@{stage}#{self._nth(stage)}")
        other = self._writer(SHARDS[1:], None)
        self._end(one, stage)
        self._expect(other, 0)

    def _zombie(self) -> None:
        stage = self._rng.choice(self._stages)
        gate = self._root / f"gate{self._rng.random()}"
        zombie = self._writer(SHARDS, f"hold@{stage}#{self._nth(stage)}:{gate}")
        wait_until_held(gate, zombie)
        mine = self._rng.sample(SHARDS, self._rng.randint(1, 3))
        self._expect(self._writer(tuple(mine), None), 0)
        gate.touch()
        self._expect(zombie, 0)

    def _jvm(self) -> None:
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 3.0))
        self._machine.kill_jvm()
        writer.wait(WRITER_WAIT_S)
        self._said(writer)
        self.outcome.killed["(jvm)"] += 1

    def _full(self) -> None:
        """Without room a writer ends with a clear error, unless the sink holds all it has; with room it goes on."""
        filler = filled(self._room)
        if self._expect(self._writer(SHARDS, None), FULL, 0) == FULL:
            self.outcome.killed["(no room)"] += 1
        filler.unlink()

    def _nth(self, stage: str) -> int:
        return 1 if stage == "opening" else self._rng.randint(1, 3)

    def _writer(self, shards: tuple[str, ...], fault: str | None) -> subprocess.Popen[str]:
        return self._machine.start(self._plan(shards), fault)

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        return {
            "seed": self._rng.random(),
            "layout": self.outcome.layout,
            "path": str(self._room / "out é%20"),
            "checkpoints": str(self._checkpoints),
            "lost": self._rng.choice((0.0, 0.5, 1.0)),
            "largest": self._rng.choice((7, 20, 60)),
            "shards": {shard: self._lasts[shard] for shard in shards},
        }

    def _end(self, writer: subprocess.Popen[str], stage: str) -> None:
        """A writer with few batches left may end before it comes to its death."""
        if self._expect(writer, KILLED, 0) == KILLED:
            self.outcome.killed[stage] += 1

    def _expect(self, writer: subprocess.Popen[str], *codes: int) -> int:
        said = self._said(writer)
        if writer.returncode not in codes:
            self.outcome.stopped += 1
            self.outcome.faults.append(f"a writer ended with {writer.returncode}: {said[-2000:]}")
        return writer.returncode

    def _said(self, writer: subprocess.Popen[str]) -> str:
        _, said = writer.communicate(timeout=WRITER_WAIT_S)
        self.outcome.fenced += said.count("Fenced:")
        return said

    def _count(self, *, final: bool) -> None:
        """No record twice and no checkpoint before its records at any time; all of them in the end."""
        found = self._found()
        self.outcome.faults += [f"acknowledged and not in the sink: {lost}" for lost in self._lost(found)[:3]]
        wanted = {(shard, sequence) for shard, last in self._lasts.items() for sequence in range(1, last + 1)}
        self.outcome.count(found, wanted if final else None)

    def _lost(self, found: Counter[tuple[str, int]]) -> list[tuple[str, int]]:
        files = {shard: self._checkpoints / shard for shard in SHARDS}
        acknowledged = {shard: json.loads(file.read_text()) for shard, file in files.items() if file.exists()}
        every = ((shard, number) for shard, last in acknowledged.items() for number in range(1, last + 1))
        return [record for record in every if not found[record]]

    def _found(self) -> Counter[tuple[str, int]]:
        path = self._room / "out é%20"
        if not any(file.suffix == ".parquet" and "/_" not in str(file) for file in path.rglob("*")):
            return Counter()
        rows = self._machine.jvm.session.read.parquet(str(path)).select("shardId", "sequence").collect()
        return Counter((row[0], row[1]) for row in rows)


@contextmanager
def room(path: Path, size: int) -> Iterator[bool]:
    """Make a directory, on a file system of this size if a mount is possible; yields whether it is."""
    path.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(path)]
    mounted = bool(size) and not subprocess.run(mount, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
        shutil.rmtree(path, ignore_errors=True)


def wait_until_held(gate: Path, writer: subprocess.Popen[str]) -> None:
    """Until the writer stands at its gate, or has ended before."""
    held = Path(f"{gate}.held")
    deadline = time.monotonic() + HELD_WAIT_S
    while not held.exists() and writer.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def filled(room: Path) -> Path:
    """A file that takes all the room there is."""
    filler = room / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler
