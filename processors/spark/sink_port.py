"""`Sink`: the interface of every sink, into which the frames of a pipeline are written; and the errors that it raises.

How to use a sink
-----------------

    marks = sink.open()                          # at the start, and again after any error below
    batch = spans(offered, marks)                # drop the records that the sink holds; if none is left, do nothing
    sink.publish(frame, batch, batch_id)         # the frame has exactly the rows of the records of `batch`

`publish` writes the frame and advances the marks of the batch's shards in one atomic step, or raises:

* `Fenced`: a mark is not the one by which the batch was trimmed, because another worker has written the shard (so our
  lease is lost), or an earlier publication of ours succeeded although its answer was lost. Nothing of this frame is in
  the sink. Open again, trim, and run the rest.
* `JobFailed`: Spark could not compute or write the frame, because of the pipeline, a record, or the cluster.
* `DataRefused`, a kind of `JobFailed`: the rows can be computed, but the sink will never take one of them. So a record
  is to blame.
* `SinkError`: any other error after which another attempt may succeed. The publication may have happened, so always
  open again.
* `SinkRefused`: another attempt cannot help; a person has to change something first.

Before the engine publishes, it checks that the sink holds the records before the batch (otherwise `GoneBack`).

Other workers may write other shards to the same sink at the same time: the sink waits for them and keeps their marks.
Marks belong to one `WriterIdentity`. A sink never returns the marks of another writer. If a sink is not declared as
shared, `open` and `publish` refuse a second writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mld.processors.spark.high_water_marks import Gap, HighWaterMarks, ShardSpans
from mld.processors.spark.positions import RecordPosition, StreamShard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SinkError(Exception):
    """A sink could not do its work this time. The message is one sentence, and names the remedy. The sink has to be
    opened again before the next attempt."""


class InputGone(SinkError):
    """A file that the job reads is gone, such as a file of a table that the pipeline's `setup` has read."""


class JobFailed(SinkError):
    """Spark could not compute or write the frame. The cause (`__cause__`) is Spark's exception."""


class ValueFailed(JobFailed):
    """A job failed over a value: SQL or a function of the user raised an exception. Another attempt would fail, too, so
    the search for the record begins at once."""


class DataRefused(JobFailed):
    """The sink will never take a row of the frame, because of a constraint or a type, although the row can be computed.
    So the record is searched for at once, without waiting for the sink."""

    sinks: frozenset[str] = frozenset()
    """The sinks that have refused the row."""


class SinkRefused(SinkError):
    """Another attempt can never succeed; a person has to change something first."""


class Fenced(SinkError):
    """Another writer has moved the marks of shards of the batch. `moved` has these shards with their present marks."""

    def __init__(self, sink: str, moved: Mapping[StreamShard, RecordPosition | None]) -> None:
        self.moved = dict(moved)
        names = ", ".join(f"{shard.label} to {mark or 'nothing'}" for shard, mark in sorted(self.moved.items()))
        super().__init__(f"sink {sink}: another writer has moved {names}; what it holds is dropped from the batch")


class GoneBack(SinkRefused):
    """A sink lacks records that were delivered earlier. `reasons` has a sentence for each shard that cannot
    continue."""

    def __init__(self, sink: str, lacking: Mapping[StreamShard, Gap]) -> None:
        self.reasons = {
            shard: f"sink {sink} holds {earlier.label} up to {mark}, and the application has come to {upto}: "
            "the sink has gone back in time (a backup, a standby that lagged), or a checkpoint was moved forward. To "
            f"fill the gap: mld reset FILE {_shard_options(earlier)} --to {mark.encode().replace(':', '/')}; "
            "to leave it: start once with -D mld.spark.onGap=accept"
            for shard, (earlier, mark, upto) in lacking.items()  # `earlier` is the shard itself, or one of its parents
        }
        super().__init__("; ".join(list(self.reasons.values())[:1]))


def _shard_options(shard: StreamShard) -> str:
    """Return the options of `mld reset` that name a shard."""
    option = f"--shard {shard.shard}"
    return option if shard.stream_name == shard.stream else f"--stream {shard.stream_name} {option}"


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a publication: the marks of all shards of the sink, the number of the ledger entry, and the number
    of rows (None if the sink cannot count them)."""

    marks: HighWaterMarks
    number: int = 0
    rows: int | None = None


class Sink(Protocol):
    """One destination. Not thread-safe; several processes on several hosts may hold it."""

    @property
    def name(self) -> str:
        """The name in `mld.spark.sink.<name>`."""

    @property
    def exactly_once(self) -> bool:
        """Whether a record that is delivered again is in the sink only once."""

    def open(self) -> HighWaterMarks:
        """Finish publications that a process has committed but not completed, and return the committed marks."""

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        """Write the frame (None: no rows) and advance the marks to the ends of `batch`, in one atomic step.

        `batch_id` goes into the ledger, only for people to read; it need not be unique."""

    def retire(self, ended: HighWaterMarks) -> None:
        """Have the next publication record that these shards have ended, so that no new record of them can come.

        `ended` has for each of these shards the position up to which its records are in this sink. It may also name
        single records (`OF_A_RECORD`), whose marks are then removed because they are no longer needed.
        """
