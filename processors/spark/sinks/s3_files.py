"""Files on S3, exactly once: numbered files in one directory, or partitioned as Hive does it.

Spark writes to a directory of this machine, so it needs no S3 client; `commit.s3_journal` uploads and publishes. Every
name begins with the number of its commit. Without `partitionBy` a commit is one file, unless
`mld.spark.sink.<name>.files = many`, and a reader sees the whole of it or nothing. With several files, a reader may
see a part of the newest commit meanwhile, and no record twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from processors.spark.commit.s3_journal import Objects, S3Journal
from processors.spark.commit.store import PosixStore
from processors.spark.sink_port import SinkRefused, SinkSpec
from processors.spark.sinks.files import PartitionedSink
from processors.spark.sinks.letter_files import LetterFiles, LetterObjects

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class S3Place:
    """A directory of a bucket: `prefix` ends with a slash, or is empty."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def place_of(path: str, key: str) -> S3Place:
    """What a path names. Raises SinkRefused with the key of the settings."""
    bucket, _, rest = path.partition("://")[2].partition("/")
    parts = [part for part in rest.split("/") if part]
    if not _BUCKET.fullmatch(bucket):
        raise SinkRefused(f"{key} = {path}: {bucket or 'nothing'} is no name of a bucket; write s3://bucket/directory")
    if any(part in (".", "..") or part.startswith(("_", ".")) for part in parts):
        raise SinkRefused(f"{key} = {path}: readers skip directories that begin with _ or a dot; use another name")
    return S3Place(bucket, "".join(f"{part}/" for part in parts))


class ScratchStore(PosixStore):
    """Files on their way to S3. Nothing of them is needed after a crash, so nothing is made durable."""

    def sync(self, path: str) -> None:
        pass

    def sync_below(self, path: str) -> None:
        pass


class S3FileSink(PartitionedSink):
    """`scratch` is a directory of this machine that nobody else writes to."""

    one_file = True

    def __init__(self, spec: SinkSpec, objects: Objects, place: S3Place, scratch: Path) -> None:
        store = ScratchStore(scratch, private=True)
        journal = S3Journal(objects, place.prefix, store, spec.name, place=str(place))
        super().__init__(spec, store, journal, str(place))
        self._letters = LetterObjects(objects, place.prefix)

    def letters(self) -> LetterFiles:
        """The files of a dead letter."""
        return self._letters
