"""Who writes into a sink: the application, its pipeline, and one stream of all that ever bore that name.

A mark is a sequence number of one stream, and says nothing about another. Two regions, two accounts, or a stream that
was deleted and made again have the same stream name and shard ids; only the ARN and the time of creation tell them
apart. Two applications over one stream read the same records, and each means to write its own. An application that
reads several streams is one writer, whose marks have the streams' identifiers in place of their names.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

ARN_VARIABLE, CREATED_VARIABLE = "MLD_STREAM_ARN", "MLD_STREAM_CREATED"
"""Set by the daemon in a child's environment, from `DescribeStreamSummary` at the start of the child."""
ID_VARIABLE = "MLD_STREAM_ID"
"""Set in the environment of every child if the application reads several streams: ``account:name:epoch``."""
ANCESTORS_VARIABLE = "MLD_ANCESTOR_SHARD_IDS"
"""Set by the daemon in a child's environment: the ids of the shards that its shard follows, with spaces between."""
SEVERAL = "(several streams)"
"""Stands for the ARN of a writer that reads several streams; its marks name each stream by its identifier."""
REGION_AND_MORE = 5  # colons of an ARN
PIPELINE_KEY, STREAM_KEY = "mld.spark.pipelineId", "mld.spark.streamId"
UNKNOWN = (
    "the daemon does not say which stream this is, of all that ever had its name, and marks in a sink would mean "
    f"nothing: allow it kinesis:DescribeStreamSummary, or (under another daemon) name the stream by {STREAM_KEY}, with "
    "another value whenever it is deleted and made again"
)


class WriterIdentity(NamedTuple):
    """Equal if and only if the marks of one are those of the other."""

    application: str = ""
    pipeline: str = ""
    """`mld.spark.pipelineId`: another one begins with no marks, and so writes everything that it is given again."""
    stream: str = ""
    """The stream's name, as in `Shard.stream`."""
    arn: str = ""
    """The ARN of the stream; or what `mld.spark.streamId` says instead."""
    created: str = ""
    """When the stream was made, in UTC as `2026-01-02T03:04:05.678Z`; empty with `mld.spark.streamId`."""

    def __str__(self) -> str:
        if self.arn == SEVERAL:
            return f"application {self.application}, pipeline {self.pipeline}, several streams"
        born = f" created {self.created}" if self.created else ""
        return f"application {self.application}, pipeline {self.pipeline}, stream {self.arn}{born}"

    @classmethod
    def decode(cls, value: Mapping[str, object]) -> WriterIdentity:
        """Decode an identity. Raises KeyError and TypeError if the value is none; what else it holds is left alone."""
        texts = [text for name in cls._fields if isinstance(text := value[name], str)]
        if len(texts) < len(cls._fields):
            raise TypeError(f"an identity of something else than texts: {value!r}")
        return cls(*texts)


def identity_of(
    env: Mapping[str, str], *, application: str, pipeline: str, stream: str, stream_id: str | None
) -> WriterIdentity | None:
    """Return this writer, by what the daemon or `mld.spark.streamId` says; None if neither tells one stream from
    another.
    """
    if env.get(ID_VARIABLE):
        return WriterIdentity(application, pipeline, arn=SEVERAL)
    if stream_id:
        return WriterIdentity(application, pipeline, stream, stream_id)
    arn, created = env.get(ARN_VARIABLE), env.get(CREATED_VARIABLE)
    return WriterIdentity(application, pipeline, stream, arn, created) if arn and created else None


def stream_key(env: Mapping[str, str]) -> str:
    """Return what stands for the stream in the marks of a child's shard (`StreamShard.stream`)."""
    identifier, arn = env.get(ID_VARIABLE), env.get(ARN_VARIABLE, "")
    if not identifier:
        return env.get("MLD_STREAM_NAME", "")
    region = arn.split(":")[3] if arn.count(":") >= REGION_AND_MORE else ""
    return f"{region}:{identifier}"  # two regions may have streams of one account, name and time
