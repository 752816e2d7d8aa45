"""What `mld doctor` finds of the stream of a DynamoDB table, read as the daemon reads it."""

from __future__ import annotations

from mld.core.errors import AwsError, StreamError
from mld.core.streams import STREAM_DISABLED, IteratorType, Shard, StartingPoint
from mld.operating.findings import Diagnosis, ok, refusal, warn
from mld.operating.stream_access import streams_of
from mld.properties.settings import Settings

NO_TABLE_STREAM = "check streamArn: the table's LatestStreamArn, which changes when the stream is switched off and on"
SWITCH_ON = "its records last 24 hours; to go on, switch the stream on and set streamArn to its new ARN"


async def examine_table_stream(settings: Settings) -> tuple[list[Diagnosis], tuple[Shard, ...] | None]:
    """Look at a table's stream: what was found, and the shards; None if they could not be listed."""
    operation = "DescribeStream"
    shards: tuple[Shard, ...] | None = None
    try:
        async with streams_of(settings) as streams:
            summary = await streams.describe()
            shards = (await streams.list_shards(None, None)).shards
            if shards:
                operation = "GetShardIterator"
                start = StartingPoint(IteratorType.TRIM_HORIZON)
                iterator = await streams.shard_iterator(shards[-1].shard_id, start)
                operation = "GetRecords"
                await streams.get_records(iterator, 1)
    except StreamError as error:
        said = error.__cause__ if isinstance(error.__cause__, AwsError) else error
        return [refusal("stream", f"dynamodb:{operation}", said, NO_TABLE_STREAM)], shards
    words = f"{summary.status}, {len(shards)} shards"
    if summary.status == STREAM_DISABLED:
        stream = warn("stream", f"{words}: no change is recorded any more", SWITCH_ON)
    else:
        stream = ok("stream", words)
    allowed = "DescribeStream, GetShardIterator and GetRecords are allowed"
    return [stream, ok("reading", allowed if shards else "DescribeStream is allowed; there is no shard yet")], shards
