"""The part of `mld doctor` that examines the streams: whether they can be described, listed and read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mld.aws.client import BotoService
from mld.core.errors import AwsError, MldError, StreamError
from mld.core.streams import IteratorType, Shard, StartingPoint, StreamKind
from mld.operating import findings
from mld.operating.examination import TIMEOUT_S, Examination, ProbeEnded
from mld.operating.findings import Diagnosis, ok, refusal, warn
from mld.operating.fleet_sight import Listed
from mld.operating.naming import settings_of_one
from mld.operating.stream_access import all_shards, streams_of
from mld.retrieval.reader_factory import kind_of

NO_TABLE_STREAM = "check streamArn: the table's LatestStreamArn, which changes when the stream is switched off and on"
NO_STREAM = "check streamName or streamArn, regionName and the account of the credentials"


class StreamProbe:
    """Examines the streams of an `Examination`, and stores their shards in it."""

    def __init__(self, exam: Examination) -> None:
        self._exam = exam

    async def examine(self) -> None:
        """Examine the stream, or each of several streams; then each finding begins with the name of its stream."""
        settings = self._exam.settings
        if not settings.is_multi_stream:
            await self._stream()
            return
        shards: list[Shard] = []
        for one in settings.streams:
            alone = Examination(settings_of_one(settings, one), self._exam.file)
            alone.factory.service_time = self._exam.factory.service_time  # the clock is judged once, by all answers
            await alone.run(StreamProbe(alone)._stream())
            self._exam.found += _under(one.name, alone.found)
            shards += alone.shards or ()
            if None in alone.listed:
                self._exam.listed[one.name] = alone.listed[None]
        self._exam.shards = tuple(shards)

    async def _stream(self) -> None:
        """Examine the only stream of the settings."""
        settings = self._exam.settings
        if kind_of(settings.stream_arn) is StreamKind.DYNAMODB:
            await self._table_stream()
            return
        async with self._exam.reached("kinesis", settings.stream_arn) as service:
            action = "kinesis:DescribeStreamSummary"
            answer = await self._exam.call(service, "stream", action, self._stream_params(), NO_STREAM)
            summary = answer["StreamDescriptionSummary"]
            by_fan_out = settings.reader.by_fan_out
            self._exam.found += findings.stream_findings(summary, by_fan_out=by_fan_out)
            await self._exam.run(self._reads(service))
            if by_fan_out:
                self._exam.found.append(await self._consumer(service, summary))

    async def _table_stream(self) -> None:
        """Examine the stream of a DynamoDB table, with the same calls as those of the daemon."""
        async with self._exam.reached("dynamodbstreams"):
            pass  # only credentials and endpoint are examined here; `streams_of` opens a client of its own
        operation = "DescribeStream"
        try:
            async with streams_of(self._exam.settings) as streams:
                summary = await streams.describe()
                self._exam.shards = tuple((await all_shards(streams)).values())
                self._exam.listed[None] = Listed(self._exam.shards, summary.status)
                if self._exam.shards:
                    operation = "GetShardIterator"
                    start = StartingPoint(IteratorType.TRIM_HORIZON)
                    iterator = await streams.shard_iterator(self._exam.shards[-1].shard_id, start)
                    operation = "GetRecords"
                    await streams.get_records(iterator, 1)
        except StreamError as error:
            raise ProbeEnded(refusal("stream", f"dynamodb:{operation}", _cause(error), NO_TABLE_STREAM)) from error
        self._exam.found.append(ok("stream", f"{summary.status}, {len(self._exam.shards)} shards"))
        allowed = "DescribeStream, GetShardIterator and GetRecords are allowed"
        words = allowed if self._exam.shards else "DescribeStream is allowed; there is no shard yet"
        self._exam.found.append(ok("reading", words))

    def _stream_params(self) -> dict[str, Any]:
        """Return the parameters by which calls name the stream."""
        arn = self._exam.settings.stream_arn
        return {"StreamName": self._exam.settings.stream_name, **({} if arn is None else {"StreamARN": arn})}

    async def _reads(self, service: BotoService) -> None:
        """Try the calls by which the daemon lists and reads a stream of Kinesis: list the shards, and read one record
        of an open shard. For enhanced fan-out it is only a warning if GetRecords fails.
        """
        about = "reading"
        try:
            async with streams_of(self._exam.settings) as streams:
                self._exam.shards = tuple((await all_shards(streams)).values())
        except StreamError as error:
            raise ProbeEnded(refusal(about, "kinesis:ListShards", _cause(error))) from error
        self._exam.listed[None] = Listed(self._exam.shards)
        shard = next((shard for shard in self._exam.shards if shard.is_open), None)
        if shard is None:
            raise ProbeEnded(warn(about, "the stream has no open shard", NO_STREAM))
        params = {**self._stream_params(), "ShardId": shard.shard_id, "ShardIteratorType": "TRIM_HORIZON"}
        answer = await self._exam.call(service, about, "kinesis:GetShardIterator", params)
        one_record = {"ShardIterator": answer["ShardIterator"], "Limit": 1}
        try:
            await self._exam.call(service, about, "kinesis:GetRecords", one_record)
        except ProbeEnded as ended:
            if not self._exam.settings.reader.by_fan_out:
                raise
            # Subscriptions do not need GetRecords. It is only needed to prove that records were lost to retention.
            found: Diagnosis = ended.args[0]
            raise ProbeEnded(
                warn(about, f"{found.words}; losses to retention cannot be proved", found.remedy)
            ) from ended
        words = f"ListShards, GetShardIterator and GetRecords are allowed ({shard.shard_id} was read)"
        if self._exam.settings.reader.by_fan_out:
            words += "; SubscribeToShard was not tried"
        self._exam.found.append(ok(about, words))

    async def _consumer(self, service: BotoService, summary: Mapping[str, Any]) -> Diagnosis:
        """Return the finding about the daemon's consumer of enhanced fan-out."""
        fanout = self._exam.settings.fanout
        name = fanout.consumer_arn or fanout.consumer_name
        params = {"StreamARN": summary["StreamARN"], "ConsumerName": name}
        if fanout.consumer_arn is not None:
            params = {"ConsumerARN": fanout.consumer_arn}
        failed: MldError | None = None
        try:
            await service.call("DescribeStreamConsumer", params, timeout_s=TIMEOUT_S)
        except MldError as error:
            failed = error
        return findings.consumer_finding(name, summary.get("ConsumerCount"), failed)


def _under(name: str, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return the findings about one of several streams, each with the stream's name in front."""
    return [replace(one, about=f"{name}: {one.about}") for one in found]


def _cause(error: StreamError) -> MldError:
    """Return the error of AWS that led to this error, because its code tells what is wrong; if there is none, the error
    itself.
    """
    return error.__cause__ if isinstance(error.__cause__, AwsError) else error
