"""Where a pipeline's frames go: the port that every sink implements, with its errors.

How to use a sink
-----------------

    marks = sink.open()                          # at start, and again after any error below
    batch = spans(offered, marks)                # drop what the sink holds already; nothing left: nothing to do
    sink.publish(frame, batch, batch_id)         # frame holds exactly the records of `batch`

`publish` writes the frame and advances the marks of the batch's shards in one atomic step, or raises:

* `Fenced`: a shard of the batch is not where the batch was trimmed, so somebody else has written it (we are the zombie,
  or a lost answer was a success). Open again, trim, and run what is left. Nothing of this frame is in the sink.
* `JobFailed`: Spark could not compute or write the frame: the pipeline, a record, or the cluster.
* `DataRefused`: a kind of it: the sink will never take these rows, though they can be computed. A record is to blame.
* `SinkError`: anything else that another attempt may cure. The publication may have happened: open again, always.
* `SinkRefused`: another attempt cannot help; a person has to change something first.

Before it publishes, the engine checks that the sink holds what was delivered right before (`GoneBack`).

Another worker that writes other shards to the same sink is no error: the sink waits for it and merges with it. Marks
belong to one application, pipeline and stream (`WriterIdentity`): a sink never returns those of another writer, and a
writer that finds another one in a sink that is not declared as shared is refused, by `open` and by `publish`.
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
    """A sink could not do it this time; one sentence with the remedy. Open again before the next attempt."""


class InputGone(SinkError):
    """A file that the job reads is gone, such as one of a table that the pipeline's `setup` has read."""


class JobFailed(SinkError):
    """Spark could not compute or write the frame; the cause is the exception of Spark."""


class ValueFailed(JobFailed):
    """A job failed over a value: an error of SQL about data, or an exception in a function of the user's. It would fail
    again, so it is not tried again before the record is searched for."""


class DataRefused(JobFailed):
    """The sink will never take a row of the frame: a constraint, or a value that its column cannot hold. It can be
    computed all the same, so the record is searched for, and the sink is not waited for."""

    sinks: frozenset[str] = frozenset()
    """Which of the sinks that were asked at once have refused it."""


class SinkRefused(SinkError):
    """What was asked for cannot be done, however often it is tried; a person has to change something."""


class Fenced(SinkError):
    """Shards of the batch were advanced by somebody else; `moved` holds their marks as they are now."""

    def __init__(self, sink: str, moved: Mapping[StreamShard, RecordPosition | None]) -> None:
        self.moved = dict(moved)
        names = ", ".join(f"{shard.label} to {mark or 'nothing'}" for shard, mark in sorted(self.moved.items()))
        super().__init__(f"sink {sink}: another writer has moved {names}; what it holds is dropped from the batch")


class GoneBack(SinkRefused):
    """A sink lacks records that were delivered before; `reasons` says so of each shard that cannot go on."""

    def __init__(self, sink: str, lacking: Mapping[StreamShard, Gap]) -> None:
        self.reasons = {
            shard: f"sink {sink} holds {one.label} up to {mark}, and the application has come to {upto}: "
            "the sink has gone back in time (a backup, a standby that lagged), or a checkpoint was moved forward. To "
            f"fill the gap: mld reset FILE {_shard_options(one)} --to {mark.encode().replace(':', '/')}; "
            "to leave it: start once with -D mld.spark.onGap=accept"
            for shard, (one, mark, upto) in lacking.items()
        }
        super().__init__("; ".join(list(self.reasons.values())[:1]))


def _shard_options(shard: StreamShard) -> str:
    one = f"--shard {shard.shard}"
    return one if shard.stream_name == shard.stream else f"--stream {shard.stream_name} {one}"


@dataclass(frozen=True, slots=True)
class Published:
    """What a publication did: the marks of every shard of the sink after it, the number of its entry, and the rows it
    added, None where the sink cannot know it."""

    marks: HighWaterMarks
    number: int = 0
    rows: int | None = None


class Sink(Protocol):
    """One destination. Not thread-safe; several processes on several hosts may hold it."""

    @property
    def name(self) -> str:
        """As in `mld.spark.sink.<name>`."""

    @property
    def exactly_once(self) -> bool:
        """Whether a record that is delivered again is in the sink once."""

    def open(self) -> HighWaterMarks:
        """Finish what others (or we) left half done, and return the committed marks."""

    def publish(self, frame: DataFrame | None, batch: ShardSpans, batch_id: str) -> Published:
        """Write the frame (None: nothing to write) and advance the marks to the ends of `batch`, in one atomic step.

        `batch_id` goes into the ledger for people; it need not be unique."""

    def retire(self, ended: HighWaterMarks) -> None:
        """Forget `ended` with the next publication: shards of which nothing new can come, with the position that this
        sink holds of each; or single records (`OF_A_RECORD`) whose marks have no use any more.
        """
