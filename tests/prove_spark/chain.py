"""A run of the proof over the whole chain: embedded AWS, daemon, children, session host and JVM as real processes.

A run puts records in rounds and kills (-9) something in each: a child, the host, the JVM, the daemon, host and daemon
at once; at a drawn moment, or while the host stands at a drawn stage of a commit. In a round of zombies the host is
stopped there, its daemon is killed, another daemon writes the rest, and then the host goes on. Other rounds split a
shard or merge two, have shards move to a second worker, and start with another pipeline. In the end a daemon finishes,
and every record is counted. At no time may a checkpoint be ahead of the sink.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from mld.processors.spark.commit import journal, ledger
from mld.processors.spark.commit.faults import VARIABLE
from tests.integration.world import ASSIGNED, ENVIRONMENT, World
from tests.prove_spark.runs import AFTER_COMMIT, BEFORE_COMMIT, Machine, Outcome
from tests.support.daemon import Daemon, until
from tests.support.servers import EmbeddedAws

CHAIN = "chain"
STAGES = (*BEFORE_COMMIT[1:], *AFTER_COMMIT[:-1])
"""Those a host comes to in every commit."""
ROUNDS = ("child", "child", "host", "jvm", "daemon", "both", "zombie", "split", "merge", "move", "change")
ROUNDS_MAX = 4
SETTLE_S = 240.0
"""A machine that does other things besides takes long to start a JVM; a hang is what this is to find."""
MOMENT_S = 4.0
STOP_S = 120.0
LOOK_S = 0.002
KEYS = {
    "failoverTimeMillis": 3_000,
    **ASSIGNED,
    "shutdownGraceMillis": 100_000,
    "mld.spark.format": "text",
    "mld.spark.master": "local[2]",
    "mld.spark.driverMemory": "600m",
    "mld.spark.triggerIntervalMillis": 200,
    "mld.spark.startTimeoutMillis": int(SETTLE_S * 1000),
    "mld.spark.drainTimeoutMillis": 90_000,
    "mld.spark.conf.spark.ui.enabled": "false",
    "mld.spark.conf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "mld.spark.conf.spark.sql.codegen.wholeStage": "false",
}
TWO_IN_FLIGHT = {"maxRecords": 10, "mld.spark.maxBatchBytes": 4096}
"""Keys of every other run: a round is many micro-batches, of which the next one is written while one is committed."""
PIPELINE = """
def transform(records, batch):
    return records.select("shardId", "sequenceNumber", "payload")
"""
CHANGED = PIPELINE.replace('"payload")', '"payload", records.payload.alias("another"))')
"""The pipeline from a round of `change` on."""


class ChainRun:
    """`rounds` are drawn if they are not given."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        root: Path,
        aws: EmbeddedAws,
        rounds: tuple[str, ...] | None = None,
    ) -> None:
        self._rng = random.Random(f"{CHAIN} {seed}")
        self._machine = machine
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        self._sink = root / "out"
        self._world = World(aws, root, shards=self._rng.randint(1, 3))
        drawn = tuple(self._rng.choice(ROUNDS) for _ in range(self._rng.randint(2, ROUNDS_MAX)))
        self._rounds = rounds or drawn
        self._daemon: Daemon | None = None
        self._gate: Path | None = None
        self._daemons = 0
        self._pipeline = PIPELINE
        self.outcome = Outcome(seed, CHAIN)

    def play(self) -> Outcome:
        try:
            self._start()
            for kind in self._rounds:
                self.outcome.rounds[kind] += 1
                self._world.put(self._rng.randint(20, 150))
                self._round(kind)
                self._check_checkpoints()
            self._finish()
        except AssertionError as error:
            self.outcome.faults.append(str(error)[-4000:])
        finally:
            self._world.close()
        return self.outcome

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _round(self, kind: str) -> None:
        rounds: dict[str, Callable[[], None]] = {
            "child": lambda: self._kill("mld-spark"),
            "host": lambda: self._kill("mld.processors.spark.host"),
            "jvm": lambda: self._kill("SparkSubmit"),
            "daemon": self._kill_daemon,
            "both": self._kill_both,
            "zombie": self._zombie,
            "split": self._split,
            "merge": self._merge,
            "move": self._move,
            "change": self._change,
        }
        rounds[kind]()

    def _kill(self, word: str) -> None:
        at = self._moment()
        if pids := self._processes(word):
            self._end(self._rng.choice(pids))
            self.outcome.killed[f"{word.rpartition('.')[2]} {at}"] += 1
        self._release()

    def _kill_daemon(self) -> None:
        at = self._moment()
        assert self._daemon is not None
        self._daemon.kill()
        self.outcome.killed[f"daemon {at}"] += 1
        self._release()
        self._start()

    def _kill_both(self) -> None:
        at = self._moment()
        assert self._daemon is not None
        for pid in self._processes("mld.processors.spark.host"):
            self._end(pid)
        self._daemon.kill()
        self.outcome.killed[f"host and daemon {at}"] += 1
        self._release()
        self._start()

    def _split(self) -> None:
        self._world.split(self._rng.choice(self._open_shards()))
        self._world.put(self._rng.randint(20, 60))
        self._kill("mld-spark")

    def _merge(self) -> None:
        """Merge two neighbours, if there are two."""
        neighbours = list(pairwise(self._open_shards()))
        if neighbours:
            self._world.merge(*self._rng.choice(neighbours))
        self._world.put(self._rng.randint(20, 60))
        self._kill("mld-spark")

    def _move(self) -> None:
        """Start another worker beside the daemon, which gives it some of its shards, or all, and then ends."""
        old = self._daemon
        assert old is not None
        at = self._moment()
        self._release()
        self._start()
        worker = f"w{self._daemons}"
        is_shared = len(self._open_shards()) > 1
        self._world.until(
            lambda: not is_shared or any(lease.owner == worker for lease in self._world.leases().values()),
            SETTLE_S,
            f"{worker} has a shard",
        )
        self._world.put(self._rng.randint(20, 60))
        if self._rng.random() < 0.5:
            old.kill()
            self.outcome.killed[f"worker that gives {at}"] += 1
        elif code := old.stop(timeout_s=STOP_S):
            self.outcome.faults.append(f"the daemon that gave its shards ended with {code}: {old.tail()}")

    def _change(self) -> None:
        self._pipeline = CHANGED
        self._kill_both()

    def _open_shards(self) -> list[str]:
        """Those that take records, neighbours side by side."""
        first_key = {
            shard["ShardId"]: int(shard["HashKeyRange"]["StartingHashKey"])
            for shard in self._world.shards()
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        }
        return sorted(first_key, key=first_key.__getitem__)

    def _zombie(self) -> None:
        """Stop a host while its daemon dies and another daemon writes the rest, then let it go on where it stood."""
        at = self._moment()
        assert self._daemon is not None
        hosts = self._processes("mld.processors.spark.host")
        for pid in hosts:
            self._end(pid, signal.SIGSTOP)
        self._daemon.kill()
        gate, self._gate = self._gate, None
        self._start()
        self._release()  # else it may stand at its stage for ever
        self._world.until(self._is_written, SETTLE_S, "the records behind a host that was stopped")
        if gate is not None:
            gate.touch()
        for pid in hosts:
            self._end(pid, signal.SIGCONT)
            self.outcome.killed[f"zombie {at}"] += 1

    def _moment(self) -> str:
        """Let some time pass, or wait until the host stands at its stage; says which it was."""
        if self._gate is None or self._gate.exists():
            time.sleep(self._rng.uniform(0.0, MOMENT_S))
            return "somewhen"
        gate = self._gate
        held = Path(f"{gate}.held")
        self._world.until(lambda: held.exists() or self._is_written(), SETTLE_S, "a commit, or all records")
        return f"@{gate.name.partition('.')[0]}" if held.exists() else "somewhen"

    def _release(self) -> None:
        if self._gate is not None:
            self._gate.touch()

    # --- processes ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start a daemon whose host will stand still at a drawn stage until the gate opens."""
        self._daemons += 1
        stage, nth = self._rng.choice(STAGES), self._rng.choice((1, 1, 2))
        self._gate = self._root / f"{stage}.{self._daemons}"
        pipeline = self._root / "pipeline.py"
        pipeline.write_text(self._pipeline)
        keys: dict[str, Any] = {
            **KEYS,
            **(TWO_IN_FLIGHT if self.outcome.seed % 2 else {}),
            "mld.spark.pipeline": f"{pipeline}:transform",
            "mld.spark.sink.out.path": self._sink,
        }
        environment = {**ENVIRONMENT, VARIABLE: f"hold@{stage}#{nth}:{self._gate}"}
        self._daemon = self._world.daemon(
            f"w{self._daemons}",
            str(Path(sys.executable).with_name("mld-spark")),
            process={"environment": environment},
            **{name.replace(".", "__"): value for name, value in keys.items()},
        )

    def _processes(self, word: str) -> list[int]:
        """Processes of the living daemon whose command line contains the word."""
        assert self._daemon is not None
        found = []
        for pid in self._daemon.survivors():
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_text()
                if word in command and "-version" not in command:
                    found.append(pid)
        return found

    def _end(self, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    # --- what is there -----------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        assert self._daemon is not None
        self._world.put(20)
        self._release()
        self._world.until(self._is_written, SETTLE_S, "all records")
        code = self._daemon.stop(timeout_s=STOP_S)
        if code != 0:
            self.outcome.faults.append(f"the daemon ended with {code}: {self._daemon.tail()}")
        self._world.until_caught_up()
        self._check_checkpoints()
        until(lambda: not any(one.survivors() for one in self._world.daemons), STOP_S, "children, hosts and JVMs gone")
        self.outcome.count(self._found(), {(put.shard, put.sequence) for put in self._world.puts})
        self.outcome.fenced = sum(one.log().count("another writer has moved") for one in self._world.daemons)

    def _found(self) -> Counter[tuple[str, int]]:
        if not any(file.suffix == ".parquet" and "/_" not in str(file) for file in self._sink.rglob("*")):
            return Counter()
        rows = self._machine.jvm.session.read.parquet(str(self._sink)).select("shardId", "sequenceNumber").collect()
        return Counter((row[0], int(row[1])) for row in rows)

    def _marks(self) -> dict[str, int]:
        """How far the sink is, as its newest entry says."""
        entries = sorted((self._sink / journal.LEDGER).glob("*.json"))
        while entries:
            with suppress(FileNotFoundError):
                (marks,) = ledger.decode(entries.pop().read_bytes(), "").writers.values()
                return {shard.shard: position.sequence for shard, position in marks.items()}
        return {}

    def _is_written(self) -> bool:
        marks = self._marks()
        return all(put.sequence <= marks.get(put.shard, -1) for put in self._world.puts)

    def _check_checkpoints(self) -> None:
        checkpoints = {key: lease.checkpoint.number for key, lease in self._world.leases().items()}
        marks = self._marks()
        for shard, number in checkpoints.items():
            if number is not None and number > marks.get(shard, -1):
                self.outcome.faults.append(f"the checkpoint of {shard} is {number}, the sink is at {marks.get(shard)}")
