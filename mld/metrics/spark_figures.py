"""`SparkFigures`: what the session host of `mld-spark` reported last. That is the process with the Spark session."""

from __future__ import annotations

from dataclasses import dataclass

from mld.metrics.declaring import Instant, age_s, given, shown


@dataclass(frozen=True, slots=True)
class SparkFigures:
    """The last report of the session host. Times are epoch seconds; counts are since the host's start."""

    written_at: float
    interval_s: float = given(
        "mld_spark_trigger_interval_seconds", "Longest regular time from one trigger of mld-spark to the next."
    )
    uncommitted_since: float | None = given()
    """Arrival of the oldest accepted record that is not in every sink yet."""
    trigger_since: float | None = given()
    """Start of the trigger that is under way; None if none is."""
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
