"""`WorkerMetrics`: the counts that are kept for the worker as a whole, not for single shards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from mld.metrics.configuration import ConfigurationMetrics
from mld.metrics.declaring import Instant, counter, gauge, histogram, shown, tally
from mld.metrics.disks import DiskMetrics
from mld.metrics.instruments import Spread, Tally
from mld.metrics.lease_table import TableMetrics
from mld.metrics.operations import Operations
from mld.metrics.spark_figures import SparkFigures

CREATED, DELETED = "created", "deleted"
"""The labels of `mld_lease_rows_total`."""
LATE_S_MIN = 60.0
"""DynamoDB counts as slow for this long after a late answer, or for a lease duration if that is longer."""


class LeaseMove(Enum):
    """How a lease came to this worker or left it."""

    TAKEN = "taken"
    ASSIGNED = "assigned"
    RESUMED = "resumed"
    HANDED_OFF = "handed_off"
    RELEASED = "released"
    LOST = "lost"
    TWIN = "twin"
    EXPIRED = "expired"


@dataclass(slots=True, eq=False)
class WorkerMetrics:
    """The counts of the worker as a whole, and the last state of its table, files, disks and Spark session."""

    records: int = field(init=False, default=0)
    """Records of shards whose leases this worker no longer holds. `Metrics.records` adds the records of the leases that
    it holds. The next two fields work in the same way."""
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
    """DynamoDB counts as slow until this time, in monotonic seconds."""
    left_behind: str | None = field(init=False, default=None)
    """The mode that the fleet has changed to, if this worker is configured to stay in its old mode and so takes no
    leases; else None."""
    lease_moves: Tally = tally(
        "mld_lease_moves_total",
        "Leases that came (taken, assigned, resumed) or went (handed_off, released, lost, expired; twin: to another "
        "process with our worker id), by how.",
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
        "Records with the frame of the Glue Schema Registry: decoded, or why not (unknown, unreachable, undecodable, "
        "over_budget), counted once more at each attempt of a batch that waits.",
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
    """For each kind of fault, how many the last check found."""
    spark: SparkFigures | None = field(init=False, default=None)
    """The last report of this daemon's session host; None if there is none."""
    operations: Operations = field(init=False, default_factory=Operations)

    def answered_late(self, words: str, now: float, late_for_s: float) -> None:
        """Count an answer of DynamoDB that confirmed a lease too late. DynamoDB counts as slow for at least
        `late_for_s` from now on.
        """
        self.late_answers += 1
        self.late_words, self.late_until = words, now + max(LATE_S_MIN, late_for_s)

    @shown(
        "mld_faults",
        "Faults that this worker knows of itself, its shards and the table, by kind (the verdict).",
        "kind",
    )
    def faults(self, _: Instant) -> Mapping[str, int]:
        return self.fault_counts
