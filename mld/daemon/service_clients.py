"""Makes the daemon's clients of Kinesis and DynamoDB, with limits for threads, calls in flight and time to answer."""

from __future__ import annotations

from mld.aws.client_factory import ClientFactory
from mld.aws.counted_service import CountedService
from mld.aws.service_factory import service_of
from mld.aws.table_calls import ANSWER_S_MAX
from mld.core.clock import Clock
from mld.core.streams import StreamKind
from mld.leases.slots import ROOM_MAX
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.properties.settings import Settings
from mld.retrieval.reader_factory import LABELS, service_name

KINESIS_THREADS_MAX = 24  # for large answers, new connections, and all calls through botocore
KINESIS_CALLS_MAX = 64  # in flight: enough for a thousand shards that are polled every 1.5 s with 100 ms per answer
KINESIS_READ_TIMEOUT_S = 30.0  # Java's kinesisRequestTimeout
DYNAMO_OTHERS_MAX = 32  # calls in flight in addition to renewals, so that slow renewals do not delay other calls


def stream_client(factory: ClientFactory, metrics: Metrics, kind: StreamKind) -> CountedService:
    """Return a client, not yet open, for streams of this kind."""
    name = service_name(kind)
    service = service_of(
        factory,
        name,
        label=LABELS[kind],
        threads_max=KINESIS_THREADS_MAX,
        calls_max=KINESIS_CALLS_MAX,
        read_timeout_s=KINESIS_READ_TIMEOUT_S,
    )
    return CountedService(service, name, metrics.worker)


def dynamo_client(
    settings: Settings, factory: ClientFactory, metrics: Metrics, reach: TableReach, clock: Clock
) -> CountedService:
    """Return a client of DynamoDB, not yet open, that notes in `reach` whether the lease table answers."""
    service = service_of(
        factory,
        "dynamodb",
        label="DynamoDB",
        threads_max=settings.leases.renewals_concurrent_max,
        calls_max=max(ROOM_MAX, settings.leases.renewals_concurrent_max) + DYNAMO_OTHERS_MAX,
        read_timeout_s=ANSWER_S_MAX,
    )
    return CountedService(service, "dynamodb", metrics.worker, reach, clock.monotonic)
