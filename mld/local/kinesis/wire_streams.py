"""The wire form of operations on whole streams: creation, settings, tags."""

from __future__ import annotations

from enum import Enum
from typing import Any

from mld.local.kinesis import errors
from mld.local.kinesis.model import Kinesis
from mld.local.kinesis.operations import INT_MAX, NAME, PAGE_MAX, OperationRequest, OperationResult, answer, operation
from mld.local.kinesis.stream_state import Stream
from mld.local.kinesis.tokens import encode_name
from mld.local.kinesis.wire_records import shard_json

_LIST_STREAMS_DEFAULT = 100
_DESCRIBE_DEFAULT = 100
_TAGS_MAX = 50
_STREAMS_TOKEN = "L"  # noqa: S105 - a kind of page token
_STRATEGY = "RecordDistributionStrategy"
_METRICS = (
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
)


class _Mode(Enum):
    PROVISIONED = "PROVISIONED"
    ON_DEMAND = "ON_DEMAND"


class _Strategy(Enum):
    AUTO = "AUTO"
    USER_PARTITION_KEY = "USER_PARTITION_KEY"


@operation
def create_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    mode = request.nested("StreamModeDetails")
    kinesis.create_stream(
        request.required("StreamName", NAME),
        now=now,
        shard_count=request.integer("ShardCount", 1, INT_MAX),
        on_demand=mode is not None and _is_on_demand(mode),
        tags=_tags(request),
        record_kib_max=request.integer("MaxRecordSizeInKiB", 1024, 10_240),
        distributes=request.text(_STRATEGY) is not None and _distributes(request),
    )
    return answer()


@operation
def delete_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    kinesis.delete_stream(request.stream(), now=now, with_consumers=request.flag("EnforceConsumerDeletion"))
    return answer()


@operation
def describe_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    limit = request.integer("Limit", 1, PAGE_MAX) or _DESCRIBE_DEFAULT
    after = request.text("ExclusiveStartShardId", NAME) or ""
    stream = kinesis.stream(request.stream(), now)
    ready = stream.status(now) != "CREATING"
    shards = [s for s in stream.shards.values() if s.shard_id > after] if ready else []
    fields = _stream_json(stream, now) | {
        "Shards": [shard_json(s) for s in shards[:limit]],
        "HasMoreShards": len(shards) > limit,
    }
    return answer({"StreamDescription": fields})


@operation
def describe_stream_summary(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    stream = kinesis.stream(request.stream(), now)
    fields = _stream_json(stream, now) | {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(kinesis.consumers(stream.arn, now=now)),
        "MaxRecordSizeInKiB": stream.record_kib_max,
    }
    if stream.on_demand:
        fields[_STRATEGY] = (_Strategy.AUTO if stream.distributes else _Strategy.USER_PARTITION_KEY).value
    return answer({"StreamDescriptionSummary": fields})


def _stream_json(stream: Stream, now: float) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status(now),
        "StreamModeDetails": _mode_json(stream),
        "RetentionPeriodHours": stream.retention_h,
        "StreamCreationTimestamp": stream.created_ms / 1000,
        "EnhancedMonitoring": [{"ShardLevelMetrics": list(stream.metrics)}],
        "EncryptionType": "NONE" if stream.key_id is None else "KMS",
    }
    return fields if stream.key_id is None else fields | {"KeyId": stream.key_id}


def _mode_json(stream: Stream) -> dict[str, str]:
    return {"StreamMode": "ON_DEMAND" if stream.on_demand else "PROVISIONED"}


@operation
def list_streams(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    limit = request.integer("Limit", 1, PAGE_MAX) or _LIST_STREAMS_DEFAULT
    after = request.place(_STREAMS_TOKEN, request.text("ExclusiveStartStreamName", NAME) or "")
    found = [s for s in kinesis.streams(now) if s.name > after]
    page = found[:limit]
    fields: dict[str, Any] = {
        "StreamNames": [s.name for s in page],
        "HasMoreStreams": len(found) > limit,
        "StreamSummaries": [
            {
                "StreamName": s.name,
                "StreamARN": s.arn,
                "StreamStatus": s.status(now),
                "StreamModeDetails": _mode_json(s),
                "StreamCreationTimestamp": s.created_ms / 1000,
            }
            for s in page
        ],
    }
    if len(found) > limit:
        fields["NextToken"] = encode_name(_STREAMS_TOKEN, page[-1].name)
    return answer(fields)


@operation
def describe_limits(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    return answer(
        {
            "ShardLimit": kinesis.shard_limit,
            "OpenShardCount": kinesis.open_shard_count(now),
            "OnDemandStreamCount": sum(s.on_demand for s in kinesis.streams(now)),
            "OnDemandStreamCountLimit": 50,
        }
    )


@operation
def update_stream_mode(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    mode = request.required_nested("StreamModeDetails")
    kinesis.set_mode(request.required("StreamARN"), on_demand=_is_on_demand(mode), now=now)
    return answer()


def _is_on_demand(mode: OperationRequest) -> bool:
    return mode.choice("StreamMode", _Mode, "streamModeDetails.streamMode") is _Mode.ON_DEMAND


@operation
def update_stream_record_distribution_strategy(
    kinesis: Kinesis, request: OperationRequest, now: float
) -> OperationResult:
    kinesis.set_distribution(request.required("StreamARN"), distributes=_distributes(request), now=now)
    return answer()


def _distributes(request: OperationRequest) -> bool:
    return request.choice(_STRATEGY, _Strategy) is _Strategy.AUTO


@operation
def increase_stream_retention_period(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    return _set_retention(kinesis, request, now, increase=True)


@operation
def decrease_stream_retention_period(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    return _set_retention(kinesis, request, now, increase=False)


def _set_retention(kinesis: Kinesis, request: OperationRequest, now: float, *, increase: bool) -> OperationResult:
    hours = request.required_integer("RetentionPeriodHours", -INT_MAX, INT_MAX)
    kinesis.set_retention(request.stream(), hours, increase=increase, now=now)
    return answer()


@operation
def update_max_record_size(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    kib = request.required_integer("MaxRecordSizeInKiB", 1024, 10_240)
    kinesis.set_record_size(request.required("StreamARN"), kib, now=now)
    return answer()


# --- tags, metrics, encryption: remembered and shown, without effect -------------------------------------------------


@operation
def add_tags_to_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    stream, tags = kinesis.stream(request.stream(), now), _tags(request)
    if len(stream.tags | tags) > _TAGS_MAX:
        raise errors.invalid(f"A stream can have at most {_TAGS_MAX} tags.")
    stream.tags.update(tags)
    return answer()


@operation
def remove_tags_from_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    stream = kinesis.stream(request.stream(), now)
    for key in request.strings("TagKeys"):
        stream.tags.pop(key, None)
    return answer()


@operation
def list_tags_for_stream(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    limit = request.integer("Limit", 1, _TAGS_MAX) or _TAGS_MAX
    after = request.text("ExclusiveStartTagKey") or ""
    stream = kinesis.stream(request.stream(), now)
    keys = sorted(key for key in stream.tags if key > after)
    tags = [{"Key": key, "Value": stream.tags[key]} for key in keys[:limit]]
    return answer({"Tags": tags, "HasMoreTags": len(keys) > limit})


def _tags(request: OperationRequest) -> dict[str, str]:
    tags = request.mapping("Tags")
    if any(not 1 <= len(key) <= 128 or len(value) > 256 for key, value in tags.items()):
        raise errors.invalid("A tag's key must have 1 to 128 characters and its value at most 256.")
    return tags


@operation
def enable_enhanced_monitoring(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    return _set_metrics(kinesis, request, now, on=True)


@operation
def disable_enhanced_monitoring(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    return _set_metrics(kinesis, request, now, on=False)


def _set_metrics(kinesis: Kinesis, request: OperationRequest, now: float, *, on: bool) -> OperationResult:
    stream = kinesis.stream(request.stream(), now)
    named = set(request.strings("ShardLevelMetrics"))
    named = set(_METRICS) if "ALL" in named else named
    before = stream.metrics
    stream.metrics = tuple(sorted(set(before) | named if on else set(before) - named))
    return answer(
        {
            "StreamName": stream.name,
            "StreamARN": stream.arn,
            "CurrentShardLevelMetrics": list(before),
            "DesiredShardLevelMetrics": list(stream.metrics),
        }
    )


@operation
def start_stream_encryption(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    kinesis.stream(request.stream(), now).key_id = request.required("KeyId")
    return answer()


@operation
def stop_stream_encryption(kinesis: Kinesis, request: OperationRequest, now: float) -> OperationResult:
    kinesis.stream(request.stream(), now).key_id = None
    return answer()
