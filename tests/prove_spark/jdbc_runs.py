"""A run of the proof with the sink in a table of a PostgreSQL.

Every writer has connections of its own to one server, and two at a time, each with a Spark of its own, race for one row
of the ledger. In two more kinds of round the server is killed under a writer and comes back, or stands still for a
while. A writer that is killed leaves its JVM, and so its transaction; the server ends it. No room in the file system is
not played.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.prove_spark.runs import SHARDS, Machine, Run
from tests.prove_spark.writer import GAVE_UP
from tests.support.databases import Postgres

JDBC, NAIVE_JDBC = "jdbc", "naive-jdbc"
BEFORE_COMMIT = ("opening", "staging", "staged", "begun", "locked", "inserted", "updated")
STAGES = (*BEFORE_COMMIT, "committed", "acknowledged")
NAIVE_STAGES = ("opening", "staging", "staged", "acknowledged")
ROUNDS = ("kill", "kill", "kill", "pair", "pair", "zombie", "zombie", "jvm", "server", "stands")
TABLES = (f'"Odd Table {number}"' for number in itertools.count(1))
"""A name for each run that none has had."""
AWAY_S = 2.0


class JdbcRun(Run):
    """With `only`, each round kills a writer in its first commit, at that stage."""

    def __init__(
        self,
        seed: int,
        machine: Machine,
        root: Path,
        database: Postgres,
        layout: str = JDBC,
        *,
        only: str | None = None,
    ) -> None:
        super().__init__(seed, layout, machine, root)
        self._database = database
        self._table = next(TABLES)
        if layout == JDBC:
            self._stages, self._kinds = STAGES, ROUNDS
        else:
            self._stages, self._kinds = NAIVE_STAGES, ("kill",)
        self._first = only is not None
        if only is not None:
            self._stages, self._kinds = (only,), ("kill",)
        self._merges = self._rng.random() < 0.3

    def _round(self, kind: str) -> None:
        rounds = {"server": self._server, "stands": self._stands}
        if kind in rounds:
            rounds[kind]()
        else:
            super()._round(kind)

    def _nth(self, stage: str) -> int:
        return 1 if self._first else super()._nth(stage)

    def _pair(self) -> None:
        """Two drivers: the other writer's Spark is in a JVM of its own."""
        stage = self._rng.choice(self._stages)
        one = self._writer(SHARDS[:1], f"kill@{stage}#{self._nth(stage)}")
        other = self._machine.start(self._plan(SHARDS[1:]), None, jvm=self._machine.spare())
        self._end(one, stage)
        self._expect(other, 0)

    def _server(self) -> None:
        """The server crashes somewhere in the work of a writer."""
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 4.0))
        self._database.kill()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._database.start()
        self._expect(writer, 0, GAVE_UP)
        self.outcome.killed["(server)"] += 1

    def _stands(self) -> None:
        """The server says nothing for a while, and goes on."""
        writer = self._writer(SHARDS, None)
        time.sleep(self._rng.uniform(0.5, 4.0))
        self._database.freeze()
        time.sleep(self._rng.uniform(0, AWAY_S))
        self._database.thaw()
        self._expect(writer, 0)

    def _plan(self, shards: tuple[str, ...]) -> dict[str, Any]:
        return {**super()._plan(shards), "options": self._options, "merge": self._merges}

    @property
    def _options(self) -> dict[str, str]:
        database = self._database
        return {
            "url": database.url,
            "driver": database.driver,
            "dbtable": self._table,
            "user": database.user,
            "password": database.password,
        }

    def _found(self) -> Counter[tuple[str, int]]:
        try:
            rows = self._machine.jvm.session.read.format("jdbc").options(**self._options).load().collect()
        except Exception as error:
            if any(said in str(error) for said in ("does not exist", "TABLE_OR_VIEW_NOT_FOUND")):
                return Counter()
            raise
        return Counter((row["shardId"], row["sequence"]) for row in rows)
