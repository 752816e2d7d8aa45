"""A world with workers of both kinds, on a single table or on the two legacy tables beside it; who owns, who leads."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.integration import history
from tests.integration.world import World
from tests.interop.java import JavaDaemon, Release
from tests.interop.load import Load
from tests.support.daemon import Daemon
from tests.support.h2_front import H2Front
from tests.support.patience import PATIENCE_S
from tests.support.servers import EmbeddedAws

FAILOVER_S = 4.0
# The same for both kinds. Reports are written often, because a worker without a fresh one is given nothing.
SHARED = {
    "failoverTimeMillis": int(FAILOVER_S * 1000),
    "workerMetricsReporterFreqInMillis": 5000,
    "gracefulLeaseHandoffTimeoutMillis": 15_000,
    "idleTimeBetweenReadsInMillis": 250,
    "parentShardPollIntervalMillis": 1000,
    "shutdownGraceMillis": 15_000,
    # Both rank workers by the throughput of their leases: figures of one machine's CPU would say nothing.
    "disableWorkerMetrics": "true",
}
Row = dict[str, Any]
JAVA_START_S = 240.0  # a fresh table to the first record took 76 to 112 s
LEADER_LOST_S = 240.0  # the lock lasts 120 s, and a Java worker looks at it every 30 s
MOVE_S = 120.0  # joins, fail-overs with a living leader, handoffs
STOP_S = 60.0
FAILED = 1  # exit code of either kind; a JVM that ends by SIGTERM has 143


class InteropWorld(World):
    """`java` and `mld` start workers; `phase` measures what a change does to the records."""

    def __init__(
        self,
        aws: EmbeddedAws,
        directory: Path,
        *,
        release: Release,
        shards: int,
        note: Callable[[str], None],
        is_loaded: bool = True,
    ) -> None:
        super().__init__(aws, directory, shards=shards)
        self.release = release
        self._front = self._closing.enter_context(H2Front(aws.endpoint))
        self.note = note
        self.load = Load(self)
        if is_loaded:
            self._closing.enter_context(self.load)

    def close(self) -> None:
        """The logs of all workers stay beside their properties files."""
        super().close()
        for daemon in self.daemons:
            daemon.file.with_suffix(".log").write_text(daemon.log())

    def mld(self, worker: str, **keys: object) -> Daemon:
        """An mld worker in the 3.x mode; creates the legacy tables if the fleet uses them and nobody has."""
        layout = "auto" if self.release.is_single_table else "legacy"
        options: dict[str, Any] = {"mld__metadataLayout": layout, **SHARED, **keys}
        return self.daemon(worker, **options)

    def java(self, worker: str, *, cloudwatch: str | None = None, **keys: object) -> JavaDaemon:
        """A Java worker; it publishes nothing unless `keys` say so, and then to the endpoint `cloudwatch`."""
        own = {
            "executableName": self.recorder(),
            "applicationName": self.table,
            "streamName": self.stream,
            "workerId": worker,
            "regionName": "us-east-1",
            "kinesisEndpoint": self._front.endpoint,
            "dynamoDBEndpoint": self.aws.endpoint,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "metricsLevel": "NONE",
            **SHARED,
            **keys,
        }
        name = f"{worker}-{len(self.daemons)}"
        daemon = JavaDaemon(
            self.directory,
            own,
            name=name,
            worker=worker,
            endpoint=cloudwatch or self.aws.endpoint,
            release=self.release,
        )
        self.daemons.append(daemon)
        daemon.start()
        return daemon

    def prepare(self) -> None:
        """Tables, index and first leases, made by an mld worker that leaves: a Java worker starts faster then."""
        daemon = self.mld("maker")
        self.until_owners(lambda owned: owned["maker"] == len(self.shards()), "the maker owns all")
        assert daemon.stop(timeout_s=STOP_S) == 0

    # --- looking -----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any], within_s: float = PATIENCE_S, what: str = "") -> Any:
        """As `World.until`, and not waited for in vain when a worker has failed."""

        def holds() -> Any:
            failed = [daemon.name for daemon in self.daemons if daemon.process.poll() == FAILED]
            assert not failed, f"{', '.join(failed)} failed while waiting for: {what}"
            return condition()

        return super().until(holds, within_s, what)

    def owned(self) -> Counter[str]:
        """How many unfinished leases each worker owns; "" for nobody, and a handoff counts for neither side."""
        leases = [lease for lease in self.leases().values() if not lease.is_complete]
        return Counter("handoff" if lease.checkpoint_owner else lease.owner or "" for lease in leases)

    def until_owners(self, condition: Callable[[Counter[str]], bool], what: str, within_s: float = MOVE_S) -> float:
        """Until it holds for what each worker owns; the seconds it took."""
        started = time.monotonic()
        try:
            self.until(lambda: condition(self.owned()), within_s, what)
        except AssertionError as error:
            raise AssertionError(f"owned: {self.owned()}, leader: {self.leader()}\n{error}") from None
        return time.monotonic() - started

    def until_all_with(self, *workers: str, within_s: float = MOVE_S) -> float:
        """Until exactly these own leases, each at least one."""
        return self.until_owners(
            lambda owned: set(owned) == set(workers), f"leases with {', '.join(workers)}", within_s
        )

    def leader(self) -> str | None:
        """Who holds the lock."""
        legacy = self.migration("TableMigration3.5")
        is_moved = legacy is not None and legacy["tm"]["S"] == "TABLE_MIGRATION_STATUS_COMPLETE"
        row = self.beside_leases("Leader") if is_moved or not self._has_legacy() else self.legacy("Leader")
        return None if row is None else str(row["ownerName"]["S"])

    def migration(self, name: str) -> Row | None:
        """The row of a migration: of the legacy table if there is one and it was not moved, else of the lease table."""
        return self.legacy(name) or self.beside_leases(name)

    def legacy(self, name: str) -> Row | None:
        """A row of the coordinator table of 3.0 to 3.4; None if there is no such table."""
        return self._row(f"{self.table}-CoordinatorState", "key", name) if self._has_legacy() else None

    def beside_leases(self, name: str) -> Row | None:
        """A row of the lease table that is no lease; None if the table does not exist yet."""
        return self._row(self.table, "leaseKey", name) if self.table in self._tables() else None

    def _tables(self) -> list[str]:
        names: list[str] = self.dynamo.list_tables()["TableNames"]
        return names

    def _has_legacy(self) -> bool:
        return f"{self.table}-CoordinatorState" in self._tables()

    def _row(self, table: str, key: str, name: str) -> Row | None:
        row: Row | None = self.dynamo.get_item(TableName=table, Key={key: {"S": name}}, ConsistentRead=True).get("Item")
        return row

    def until_leader(self, worker: str, within_s: float = LEADER_LOST_S) -> float:
        started = time.monotonic()
        self.until(lambda: self.leader() == worker, within_s, f"{worker} leads")
        return time.monotonic() - started

    def fleet(self, leader: str) -> tuple[Daemon, Daemon]:
        """A worker that leads and one that follows; `leader` is "java" or "mld", the other is of the other kind.

        They are java-1 and mld-1, and own half of the leases each.
        """
        self.prepare()
        start = {"java": self.java, "mld": self.mld}
        first, second = f"{leader}-1", "mld-1" if leader == "java" else "java-1"
        leading = start[leader](first)
        self.until_leader(first)
        self.until_all_with(first)
        following = start[second.partition("-")[0]](second)
        self.until_shared(first, second)
        assert self.leader() == first
        return leading, following

    def until_shared(self, *workers: str, within_s: float = MOVE_S) -> float:
        """Until each of these has its share, and nobody else anything."""
        share = len([lease for lease in self.leases().values() if not lease.is_complete]) // len(workers)
        return self.until_owners(
            lambda owned: set(owned) == set(workers) and min(owned.values()) >= share,
            f"leases shared by {', '.join(workers)}",
            within_s,
        )

    def open_shards(self) -> set[str]:
        return {shard["ShardId"] for shard in self.shards()} - set().union(*self.parents.values())

    def until_open_shards_are_read(self, within_s: float = MOVE_S) -> None:
        """Every open shard has an owner and has given records to a child, and the rows of the others are finished."""
        is_open = self.open_shards()

        def is_read() -> bool:
            leases = self.leases()
            ended = all(lease.is_complete for key, lease in leases.items() if key not in is_open)
            owned = all(key in leases and leases[key].owner is not None for key in is_open)
            return ended and owned and is_open <= {shard for shard, _ in self.history.delivered()}

        self.until(is_read, within_s, f"{sorted(is_open)} read, the others finished")

    # --- measuring ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Notes how long a change took, and the longest wait of the records put from its beginning to its end."""
        since = time.monotonic_ns()
        yield
        took_s = (time.monotonic_ns() - since) / 1e9
        self.until_delivered(within_s=MOVE_S)
        self.note(f"{what}: settled after {took_s:.1f} s, longest wait {self.load.longest_wait_s(since):.1f} s")

    def finish(self) -> None:
        """Stop the load, await the last record, check every promise."""
        self.load.stop()
        self.until_delivered(within_s=MOVE_S)
        lives = self.history.lives()
        # While a row is handed over two may write it: the next owner is named in it, the one before keeps renewing it.
        writes = [write for write in self.writes if "checkpointOwner" not in write.row]
        history.check_all(self.puts, lives, writes, self.parents)
        delivered = sum(len(life.delivered) for life in lives)
        self.note(f"{len(self.puts)} records, {delivered} deliveries to {len(lives)} children; in order, none lost")
