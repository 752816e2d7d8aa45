"""The identity of a writer in the ledger of a sink: the application, its pipeline, and the one stream that it reads.

A mark is a sequence number of one stream, and says nothing about another stream. Streams of two regions or accounts, or
a stream that was deleted and made again, may have the same name and shard ids. Only the ARN and the time of creation
distinguish them. Two applications that read the same stream write separate rows. An application that reads several
streams is one writer, and its marks name each stream by its identifier.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ARN_VARIABLE, CREATED_VARIABLE = "MLD_STREAM_ARN", "MLD_STREAM_CREATED"
"""The daemon sets these in a child's environment, from `DescribeStreamSummary` when the child starts."""
ID_VARIABLE = "MLD_STREAM_ID"
"""The daemon sets this for every child if the application reads several streams: ``account:name:epoch``."""
ANCESTORS_VARIABLE = "MLD_ANCESTOR_SHARD_IDS"
"""The daemon sets this in a child's environment: the ids of the parent shards, with spaces between."""
SEVERAL = "(several streams)"
"""Takes the place of the ARN for a writer that reads several streams."""
ARN_COLONS = 5
PIPELINE_KEY, STREAM_KEY = "mld.spark.pipelineId", "mld.spark.streamId"
UNKNOWN = (
    "the daemon does not say which stream this is, of all that ever had its name, and marks in a sink would mean "
    f"nothing: allow it kinesis:DescribeStreamSummary, or (under another daemon) name the stream by {STREAM_KEY}, with "
    "another value whenever it is deleted and made again"
)


class WriterIdentity(NamedTuple):
    """Identifies a writer. Two writers share marks if and only if their identities are equal."""

    application: str = ""
    pipeline: str = ""
    """`mld.spark.pipelineId`. A new value begins without marks, so all records that are delivered are written again."""
    stream: str = ""
    """The stream's name, as in `StreamShard.stream`."""
    arn: str = ""
    """The ARN of the stream, or the value of `mld.spark.streamId`."""
    created: str = ""
    """When the stream was created, in UTC as `2026-01-02T03:04:05.678Z`; empty with `mld.spark.streamId`."""

    def __str__(self) -> str:
        if self.arn == SEVERAL:
            return f"application {self.application}, pipeline {self.pipeline}, several streams"
        born = f" created {self.created}" if self.created else ""
        return f"application {self.application}, pipeline {self.pipeline}, stream {self.arn}{born}"

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> WriterIdentity:
        """Decode an identity; other keys of the value are ignored. Raises KeyError and TypeError."""
        texts = [text for name in cls._fields if isinstance(text := value[name], str)]
        if len(texts) < len(cls._fields):
            raise TypeError(f"an identity of something else than texts: {value!r}")
        return cls(*texts)


def identity_of(
    env: Mapping[str, str], *, application: str, pipeline: str, stream: str, stream_id: str | None
) -> WriterIdentity | None:
    """Return this writer's identity, from the daemon's variables or `mld.spark.streamId`. None if neither identifies
    the stream."""
    if env.get(ID_VARIABLE):
        return WriterIdentity(application, pipeline, arn=SEVERAL)
    if stream_id:
        return WriterIdentity(application, pipeline, stream, stream_id)
    arn, created = env.get(ARN_VARIABLE), env.get(CREATED_VARIABLE)
    return WriterIdentity(application, pipeline, stream, arn, created) if arn and created else None


def stream_key(env: Mapping[str, str]) -> str:
    """Return the name of a child's stream in marks (`StreamShard.stream`): the stream's name, or, if the application
    reads several streams, ``region:account:name:epoch``."""
    identifier, arn = env.get(ID_VARIABLE), env.get(ARN_VARIABLE, "")
    if not identifier:
        return env.get("MLD_STREAM_NAME", "")
    region = arn.split(":")[3] if arn.count(":") >= ARN_COLONS else ""
    return f"{region}:{identifier}"  # the identifier alone may be the same in two regions
