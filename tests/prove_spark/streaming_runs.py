"""A run of the proof for the streaming mode: as `runs`, with one writer at a time, and a state that adds up.

A zombie is held in a JVM of its own, which is killed before the next writer begins: the JVM has the checkpoint, the
zombie goes on with the inbox.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from tests.prove_spark.jvm import Bare
from tests.prove_spark.runs import ROUNDS, SHARDS, STAGES, Machine, Run, filled, wait_until_held
from tests.prove_spark.writer import GAVE_UP

STREAMING = "streaming"
ROOM_BYTES = 64 * 1024 * 1024
"""The checkpoints of two queries are many small files."""
STREAMING_STAGES = (*STAGES, "inboxed", "batch", "published", "processed")
WITHOUT_ROOM_S = 3.0


class StreamingRun(Run):
    def __init__(self, seed: int, machine: Machine, root: Path, *, only: str | None = None) -> None:
        """`only`: nothing happens but kills at this stage."""
        super().__init__(seed, STREAMING, machine, root)
        self._stages = STREAMING_STAGES if only is None else (only,)
        self._kinds = tuple(kind for kind in ROUNDS if kind != "pair") if only is None else ("kill",)
        self._room_bytes = ROOM_BYTES
        self._lasts = {shard: self._rng.randint(10, 30) for shard in SHARDS}

    def _zombie(self) -> None:
        stage = self._rng.choice(self._stages)
        gate = self._root / f"gate{self._rng.random()}"
        self._machine.kill_jvm()  # which has the checkpoint if it has run a writer
        spare = self._machine.spare()
        zombie = self._writer(SHARDS, f"hold@{stage}#{self._nth(stage)}:{gate}", jvm=spare)
        wait_until_held(gate, zombie)
        self._machine.kill_spare()
        mine = self._rng.sample(SHARDS, self._rng.randint(1, 3))
        self._expect(self._writer(tuple(mine), None), 0)
        gate.touch()
        self._expect(zombie, 0, GAVE_UP)
        self.outcome.killed[f"(zombie at {stage})"] += 1

    def _full(self) -> None:
        """Without room nothing goes on, and nothing is acknowledged; with room it does."""
        filler = filled(self._room)
        writer = self._writer(SHARDS, None)
        time.sleep(WITHOUT_ROOM_S)
        filler.unlink()
        self._expect(writer, 0, GAVE_UP)

    def _writer(self, shards: tuple[str, ...], fault: str | None, *, jvm: Bare | None = None) -> subprocess.Popen[str]:
        return self._machine.start(self._plan(shards), fault, module="streaming", jvm=jvm)

    def _count(self, *, final: bool) -> None:
        super()._count(final=final)
        if final:
            rows = self._machine.jvm.session.read.parquet(str(self._room / "sums"))
            latest = rows.selectExpr("shardId", "struct(records, total) AS sums").groupBy("shardId")
            found = {row[0]: tuple(row[1]) for row in latest.agg({"sums": "max"}).collect()}
            wanted = {shard: (last, last * (last + 1) // 2) for shard, last in self._lasts.items()}
            if found != wanted:
                self.outcome.faults.append(f"the state has counted {found}, of {wanted}")
