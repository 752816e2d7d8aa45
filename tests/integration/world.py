"""The world of one integration test: a stream, a lease table, daemons with recording children, and what was put."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mld.leases.lease import Lease
from mld.leases.rows import parse_row
from tests.integration import history
from tests.integration.history import History, Put
from tests.support.daemon import Daemon, child_command, until
from tests.support.patience import PATIENCE_S
from tests.support.servers import ACCOUNT, EmbeddedAws, ServerProcess
from tests.support.wiretap import RowWrite, WireTap

PUT_BATCH = 500  # of PutRecords
DELIVERY_TIMEOUT_S = PATIENCE_S
QUICK = {
    # Long enough that no lease expires by itself on a loaded machine; `SHORT_LEASE` is for tests of takeovers.
    "failoverTimeMillis": 10_000,
    "shutdownGraceMillis": 8000,
    "idleTimeBetweenReadsInMillis": 200,
    "parentShardPollIntervalMillis": 500,
    "taskBackoffTimeMillis": 100,
    "listShardsBackoffTimeInMillis": 50,
    "schedulerInitializationBackoffTimeMillis": 50,
    "mld.childRestartBackoffMillis": 50,
    "mld.childStopTimeoutMillis": 1000,
}
SHORT_LEASE = {"failoverTimeMillis": 2000}  # renewed every 0.64 s; the next worker takes it within 6 s
TAKEN = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"}
"""Workers of a 2.x fleet take their leases themselves."""
ASSIGNED = {
    "clientVersionConfig": "CLIENT_VERSION_CONFIG_3X",  # the default
    "disableWorkerMetrics": "true",  # all workers of a test measure the same machine, so that no CPU figure stands out
    "leaseAssignmentIntervalMillis": 1000,
    "workerMetricsReporterFreqInMillis": 1000,
}
"""Workers of a 3.x fleet are given their leases by a leader, here with short intervals."""
# kinesis-local takes an access key of twelve digits for the account; the embedded AWS does not look at it.
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": ACCOUNT, "AWS_SECRET_ACCESS_KEY": "local"}
ONLY_BOTOCORE = {"AWS_LAMBDA_FUNCTION_NAME": "f", "_X_AMZN_TRACE_ID": "Root=1"}
"""An environment in which botocore's requests have a header that the wire client does not know."""
_numbers = itertools.count(1)
MakeWorld = Callable[..., "World"]


class World:
    """`kinesis` may be another server than the embedded AWS, which always is the DynamoDB."""

    def __init__(
        self, aws: EmbeddedAws, directory: Path, *, shards: int = 1, kinesis: ServerProcess | None = None
    ) -> None:
        self.aws = aws
        self.stream = self.table = f"app-{os.getpid()}-{next(_numbers)}"
        self.directory = directory
        self.records = directory / "records"
        self.records.mkdir()
        self.puts: list[Put] = []
        self.writes: list[RowWrite] = []
        self.history = History(self.records)
        self.daemons: list[Daemon] = []
        self.parents: dict[str, set[str]] = {}
        self.taps: dict[str, WireTap] = {}
        self._closing = contextlib.ExitStack()
        self._kinesis_server = kinesis or aws
        self.kinesis = self._kinesis_server.client("kinesis")
        self.dynamo = aws.client("dynamodb")
        self.kinesis.create_stream(StreamName=self.stream, ShardCount=shards)
        self.until_active()

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.close()
        self.aws.restore_clock()
        self._closing.close()
        self.kinesis.close()
        self.dynamo.close()

    # --- daemons -----------------------------------------------------------------------------------------------------

    def keys(self, worker: str, child: str, keys: Mapping[str, object]) -> dict[str, object]:
        return {
            "executableName": child,
            "applicationName": self.table,
            "streamName": self.stream,
            "workerId": worker,
            "regionName": "us-east-1",
            "kinesisEndpoint": self._kinesis_server.endpoint,
            "dynamoDBEndpoint": self.tap(worker).endpoint,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            **QUICK,
            **{name.replace("__", "."): value for name, value in keys.items()},
        }

    def daemon(
        self,
        worker: str = "w1",
        child: str = "",
        *,
        log: str = "info",
        process: Mapping[str, Any] | None = None,
        **keys: object,
    ) -> Daemon:
        """Start a worker. `child` is an executableName, by default the recorder; dots in key names are written `__`.

        `process` are more arguments of `Daemon`.
        """
        daemon = Daemon(
            self.directory,
            self.keys(worker, child or self.recorder(), keys),
            name=f"{worker}-{len(self.daemons)}",
            **{"arguments": ["--log-level", log], "environment": ENVIRONMENT, **(process or {})},
        )
        self.daemons.append(daemon)
        return daemon.start()

    def tap(self, worker: str) -> WireTap:
        if worker not in self.taps:
            self.taps[worker] = self._closing.enter_context(WireTap(self.aws.endpoint, worker, self.writes))
        return self.taps[worker]

    def recorder(self, **options: object) -> str:
        return child_command("recorder.py", self.records, *(f"{name}={value}" for name, value in options.items()))

    def hostile(self, mode: str, **options: object) -> str:
        arguments = (f"{name}={value}" for name, value in options.items())
        return child_command("hostile.py", self.records, f"mode={mode}", *arguments)

    # --- the stream --------------------------------------------------------------------------------------------------

    def put(self, count: int, size: int = 0) -> list[Put]:
        """Put so many records, spread over the open shards; what the stream made of them."""
        new: list[Put] = []
        while len(new) < count:
            number = len(self.puts) + len(new)
            texts = [f"record-{number + i}".ljust(size, ".") for i in range(min(PUT_BATCH, count - len(new)))]
            entries = [{"Data": text.encode(), "PartitionKey": text} for text in texts]
            answer = self.kinesis.put_records(StreamName=self.stream, Records=entries)
            assert answer["FailedRecordCount"] == 0, answer
            pairs = zip(answer["Records"], texts, strict=True)
            new += [Put(one["ShardId"], int(one["SequenceNumber"]), text) for one, text in pairs]
        self.puts += new
        return new

    def shards(self) -> list[dict[str, Any]]:
        shards: list[dict[str, Any]] = self.kinesis.list_shards(StreamName=self.stream)["Shards"]
        return shards

    def split(self, shard_id: str) -> None:
        shard = next(shard for shard in self.shards() if shard["ShardId"] == shard_id)
        keys = shard["HashKeyRange"]
        middle = (int(keys["StartingHashKey"]) + int(keys["EndingHashKey"])) // 2 + 1
        self.kinesis.split_shard(StreamName=self.stream, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.until_active()

    def merge(self, one: str, other: str) -> None:
        self.kinesis.merge_shards(StreamName=self.stream, ShardToMerge=one, AdjacentShardToMerge=other)
        self.until_active()

    def until_active(self) -> None:
        def is_active() -> bool:
            summary = self.kinesis.describe_stream_summary(StreamName=self.stream)
            return bool(summary["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE")

        until(is_active, what=f"stream {self.stream} ACTIVE")
        for shard in self.shards():
            named = {shard.get("ParentShardId"), shard.get("AdjacentParentShardId")}
            self.parents[shard["ShardId"]] = {parent for parent in named if parent}

    # --- looking -----------------------------------------------------------------------------------------------------

    def until_delivered(self, puts: list[Put] | None = None, within_s: float = DELIVERY_TIMEOUT_S) -> None:
        """Until every record put so far (or those given) has reached a child."""
        wanted = {(put.shard, put.sequence) for put in (self.puts if puts is None else puts)}
        self.until(lambda: wanted <= self.history.delivered(), within_s, "all records delivered")

    def until(self, condition: Callable[[], Any], within_s: float = PATIENCE_S, what: str = "") -> Any:
        """As `support.daemon.until`; what the daemons said last is in the error."""
        try:
            return until(condition, within_s, what)
        except AssertionError as error:
            tails = "\n".join(f"--- {daemon.name}\n{daemon.tail()}" for daemon in self.daemons)
            raise AssertionError(f"{error}\n{tails}") from None

    def lease(self, shard: str) -> Lease:
        """The row of the shard whose id ends so."""
        return next(lease for key, lease in self.leases().items() if key.endswith(shard))

    def leases(self) -> dict[str, Lease]:
        """Every row; none before the table exists."""
        if self.table not in self.dynamo.list_tables()["TableNames"]:
            return {}
        items = self.dynamo.scan(TableName=self.table, ConsistentRead=True)["Items"]
        parsed = (parse_row(item) for item in items)
        return {lease.key: lease for lease in parsed if lease is not None}

    def until_caught_up(self, within_s: float = PATIENCE_S) -> None:
        """Until the checkpoints of all open shards stand at the last record put into them."""
        last: dict[str, int] = {}
        for put in self.puts:
            last[put.shard] = max(last.get(put.shard, 0), put.sequence)

        def is_caught_up() -> bool:
            leases = self.leases()
            return all(
                shard not in leases or leases[shard].is_complete or leases[shard].checkpoint.number == sequence
                for shard, sequence in last.items()
            )

        self.until(is_caught_up, within_s, "checkpoints at the last records")

    def check(self) -> None:
        """Every promise, over everything that happened."""
        history.check_all(self.puts, self.history.lives(), self.writes, self.parents)
