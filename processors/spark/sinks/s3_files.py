"""Files on S3, exactly once: numbered files in one directory, or partitioned as Hive does it.

Spark writes to a directory of this machine, so it needs no S3 client; `commit.s3_journal` uploads and publishes. On a
cluster, executors write to the staging area of the bucket with a client of their own (`session.s3a`). Every
name begins with the number of its commit. Without `partitionBy` a commit is one file, unless
`mld.spark.sink.<name>.files = many`, and a reader sees the whole of it or nothing. With several files, a reader may
see a part of the newest commit meanwhile, and no record twice.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from mld.processors.spark.commit.s3_journal import S3Journal
from mld.processors.spark.commit.s3_staging import AT_ONCE, Objects, S3Place, S3Staging, object_failures
from mld.processors.spark.commit.store import PosixStore, StagingStore
from mld.processors.spark.high_water_marks import HighWaterMarks
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused, SinkSpec
from mld.processors.spark.sinks.files import OPTIONS, write
from mld.processors.spark.sinks.letter_files import LetterFiles, LetterObjects
from mld.processors.spark.sinks.partitioned_files import PartitionedSink
from mld.processors.spark.spark_errors import sentence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTER = {"mapreduce.fileoutputcommitter.algorithm.version": "2"}
"""Each task moves its own files to their places once the driver lets it: one copy less. They are in a staging area."""
CANNOT = ("AccessDenied", "NoAuthWithAWS", "NoAwsCredentials", "ClassNotFoundException", "InvalidAccessKeyId")
"""What a client of S3 says that will say so again."""


class ScratchStore(PosixStore):
    """Files on their way to S3. Nothing of them is needed after a crash, so nothing is made durable."""

    def sync(self, path: str) -> None:
        pass

    def sync_below(self, path: str) -> None:
        pass


class S3FileSink(PartitionedSink):
    """`staging` is where Spark writes: a directory of this machine, or the staging areas in the bucket."""

    one_file = True

    def __init__(self, spec: SinkSpec, objects: Objects, place: S3Place, staging: StagingStore) -> None:
        journal = S3Journal(objects, place.prefix, staging, spec.name, place=str(place))
        super().__init__(spec, staging, journal, str(place))
        self._letters = LetterObjects(objects, place.prefix)
        self._objects, self._prefix = objects, place.prefix

    def letters(self) -> LetterFiles:
        """Return the files of a dead letter."""
        return self._letters

    def _existing(self, directories: list[str]) -> set[str]:
        def is_begun(directory: str) -> bool:
            return any(True for _ in self._objects.list(f"{self._prefix}{directory}/", most=1))

        with object_failures(f"sink {self.name}: looking for directories"), ThreadPoolExecutor(AT_ONCE) as threads:
            return {one for one, there in zip(directories, threads.map(is_begun, directories), strict=True) if there}


class ClusterS3FileSink(S3FileSink):
    """Executors write to the bucket themselves; before the first batch they have to show that they can."""

    def __init__(self, spec: SinkSpec, objects: Objects, place: S3Place, spark: SparkSession) -> None:
        staging = S3Staging(objects, place.bucket, place.prefix, spec.name)
        super().__init__(replace(spec, options={**COMMITTER, **spec.options}), objects, place, staging)
        self._spark: SparkSession | None = spark

    def open(self) -> HighWaterMarks:
        marks = super().open()
        if self._spark is not None:
            self._try_executors(self._spark)
            self._spark = None  # once
        return marks

    def _try_executors(self, spark: SparkSession) -> None:
        token = self._journal.stage()
        data = self._journal.data(token)
        try:
            options = {**COMMITTER, **OPTIONS}
            frame = spark.range(1)
            write(frame, sink=self.name, format="json", options=options, mode="error", path=self._store.uri(data))
            if not self._store.files(data):
                raise SinkRefused(
                    f"sink {self.name}: what executors write to {self._store.uri(data)} is not there for this host: it "
                    "asks another store; mld.spark.s3.endpoint and mld.spark.conf.spark.hadoop.fs.s3a.endpoint have to "
                    "agree"
                )
        except JobFailed as error:
            text = f"{error} {error.__cause__}"
            said = f"sink {self.name}: executors cannot write to {self.place}: {sentence(text)}"
            if any(words in text for words in CANNOT):
                raise SinkRefused(
                    f"{said}; they use the AwsCredentialsProvider and the mld.spark.s3 keys of the daemon's file on "
                    "their own nodes, and mld.spark.conf.spark.hadoop.fs.s3a.* replaces them"
                ) from error
            raise SinkError(f"{said}; it is tried again") from error
        finally:
            self._journal.discard(token)
