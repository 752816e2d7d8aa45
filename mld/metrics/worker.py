"""What is counted for the worker as a whole: leases, requests, what it sees of the table, and its session of Spark."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mld.metrics.configuration import ConfigurationMetrics
from mld.metrics.declaring import Instant, age_s, counter, gauge, given, histogram, shown, tally
from mld.metrics.disks import DiskMetrics
from mld.metrics.instruments import Spread, Tally
from mld.metrics.operations import Operations

LATE_S_MIN = 60.0
"""How long answers count as late after the last one that was, or for a lease duration, in which each is renewed."""


@dataclass(slots=True, eq=False)
class TableMetrics:
    """What reads of the whole lease table have shown last. None: this worker does not look, or does not lead."""

    workers: int | None = gauge(
        "mld_workers", "Live workers, as the leader sees them.", "LeaseAssignmentManager NumWorkers"
    )
    unassigned: int | None = gauge(
        "mld_unassigned_leases",
        "Leases without a live owner, as the leader sees them.",
        "LeaseAssignmentManager ExpiredLeases",
    )
    without_room: int | None = gauge(
        "mld_leases_without_room",
        "Leases of open shards that no worker has had room for (maxLeasesForWorker) for a minute.",
    )
    corrupt: int | None = gauge(
        "mld_rows_corrupt",
        "Rows of the lease table that cannot be read.",
        "LeaseAssignmentManager LeaseDeserializationFailureCount",
    )
    strangers: int | None = gauge(
        "mld_workers_of_other_applications",
        "Live workers in the lease table that read another stream than this one: two applications have one table.",
    )
    corrupt_rows: tuple[tuple[str, str], ...] = field(init=False, default=())
    """Key and reason of those that are leases."""
    lease_counts: tuple[int, int] | None = field(init=False, default=None)
    """Leases, and those of open shards, as the leader sees them."""
    clocks_off: Mapping[str, float] | None = field(init=False, default=None)
    """By how many seconds the clocks of other workers are ahead, as the leader sees them; none that is right."""
    holes_of: dict[str | None, int] = field(init=False, default_factory=dict)
    """Gaps in the hash range that no lease covers, by stream; None is the only stream."""

    def forget_leadership(self) -> None:
        """Forget what only the leader looks for."""
        self.workers = self.unassigned = self.lease_counts = self.clocks_off = None
        self.holes_of = {}

    @shown("mld_clocks_disagree", "Workers whose clocks are more than a minute off, as the leader sees them.")
    def clocks_disagree(self, _: Instant) -> int | None:
        return None if self.clocks_off is None else len(self.clocks_off)

    @shown(
        "mld_lease_table_holes",
        "Gaps in the hash range that no lease covers, as the leader sees them.",
        java="PeriodicShardSyncManager NumStreamsWithPartialLeases",
    )
    def holes(self, _: Instant) -> int | None:
        return sum(self.holes_of.values()) if self.holes_of else None


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """What the session host of `mld-spark` told last of its work; times in epoch seconds, counts since its start."""

    written_at: float
    interval_s: float = given(
        "mld_spark_trigger_interval_seconds", "Longest regular time from one trigger of mld-spark to the next."
    )
    uncommitted_since: float | None = given()
    """When the oldest record that is not in every sink was accepted."""
    trigger_since: float | None = given()
    """Since when a trigger has been at it."""
    dropped: int = given(
        "mld_spark_records_dropped_total",
        "Records delivered again that a sink of mld-spark was not given, because it has them.",
    )
    malformed: int = given("mld_spark_records_malformed_total", "Records that mld-spark could not decode.")
    poisoned: int = given(
        "mld_spark_records_poisoned_total",
        "Records with which the pipeline or a sink of mld-spark failed, and that are in its dead letter.",
    )
    stray: int = given(
        "mld_spark_records_stray_total",
        "Records with fields that mld.spark.schema does not name, of the first 1,000 of each task that are looked at, "
        "or of all with mld.spark.rescuedColumn.",
    )

    @shown(
        "mld_spark_uncommitted_age_seconds",
        "How long the oldest record that mld-spark has accepted has waited to be in every sink; 0 while none waits.",
    )
    def uncommitted_age_s(self, at: Instant) -> float:
        return age_s(self.uncommitted_since, at.wall_s) or 0.0

    @shown(
        "mld_spark_trigger_age_seconds",
        "Age of the trigger of mld-spark that has not ended; 0 while none is under way.",
    )
    def trigger_age_s(self, at: Instant) -> float:
        return age_s(self.trigger_since, at.wall_s) or 0.0

    @shown(
        "mld_spark_silence_seconds",
        "How long ago the session host of mld-spark wrote its figures, which it does every 5 seconds.",
    )
    def silence_s(self, at: Instant) -> float:
        return max(0.0, at.wall_s - self.written_at)


@dataclass(slots=True, eq=False)
class WorkerMetrics:
    """What is counted for the worker as a whole."""

    records: int = field(init=False, default=0)
    """Of shards whose leases are gone; so are the next two. `Metrics` adds those that are held."""
    record_bytes: int = field(init=False, default=0)
    child_restarts: int = field(init=False, default=0)
    leases_lost: int = counter(
        "mld_leases_lost_total", "Leases that others took or that expired.", "RenewAllLeases LostLeases"
    )
    tables_lost: int = counter(
        "mld_lease_table_lost_total", "Times that the lease table was found deleted under this worker."
    )
    late_answers: int = counter(
        "mld_late_answers_total",
        "Answers of DynamoDB that confirmed a lease only after four fifths of its duration: "
        "two workers may deliver the same records.",
    )
    late_words: str = field(init=False, default="")
    late_until: float = field(init=False, default=-math.inf)
    """Monotonic: answers count as late until then."""
    left_behind: str | None = field(init=False, default=None)
    """The mode that the fleet has gone on to, if this worker takes no leases because it was told to stay."""
    lease_moves: Tally = tally(
        "mld_lease_moves_total",
        "Leases that came (taken, assigned, resumed) or went (handed_off, released, lost, expired, twin), by how.",
        "how",
    )
    """By `LeaseMove`."""
    rows: Tally = tally(
        "mld_lease_rows_total",
        "Rows of the lease table that this worker created for new shards and deleted for finished ones.",
        "what",
    )
    """`CREATED` and `DELETED`."""
    requests: Tally = tally(
        "mld_aws_requests_total",
        "Requests to AWS; the result is ok or the code of the error.",
        "service",
        "operation",
        "result",
    )
    framed_records: Tally = tally(
        "mld_framed_records_total",
        "Records with the frame of the Glue Schema Registry: decoded, or why not (unknown, unreachable, undecodable), "
        "counted once more at each attempt of a batch that waits.",
        "result",
    )
    units: Tally = tally(
        "mld_dynamodb_units_total",
        "Capacity units of DynamoDB that answers say were used: read or write.",
        "kind",
    )
    prefetch_limit_bytes: int = gauge("mld_prefetch_limit_bytes", "Most payload that may wait.", initial=0)
    is_leader: bool = gauge(
        "mld_leader", "1 while this worker leads.", "LeaderDecider LeaderDecider:IsLeader", initial=False
    )
    unexpected_errors: int = counter(
        "mld_unexpected_errors_total",
        "Exceptions that nobody expected and a loop survived: each is a defect to report.",
    )
    log_lines_dropped: int = counter(
        "mld_log_lines_dropped_total", "Lines of the log that were dropped because nobody read standard error."
    )
    loop_delay: Spread = histogram("mld_loop_delay_seconds", "How late a timer of the event loop is.")
    table: TableMetrics = field(init=False, default_factory=TableMetrics)
    configuration: ConfigurationMetrics = field(init=False, default_factory=ConfigurationMetrics)
    disks: DiskMetrics = field(init=False, default_factory=DiskMetrics)
    fault_counts: Mapping[str, int] = field(init=False, default_factory=dict)
    """Of each kind, as judged last."""
    spark: SparkFigures | None = field(init=False, default=None)
    """Of this daemon's session host; None where there is none."""
    operations: Operations = field(init=False, default_factory=Operations)

    def answered_late(self, words: str, now: float, late_for_s: float) -> None:
        """Count an answer of DynamoDB that confirmed a lease too late: they are late until some come in time, for
        `late_for_s` at least.
        """
        self.late_answers += 1
        self.late_words, self.late_until = words, now + max(LATE_S_MIN, late_for_s)

    @shown("mld_faults", "What this worker knows to be wrong, by kind: with itself, its shards and the table.", "kind")
    def faults(self, _: Instant) -> Mapping[str, int]:
        return self.fault_counts
