"""The services of a daemon: botocore's client in a few threads, before it the lean one if that is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.aws.client import BotoService, keep_raw_body
from mld.aws.client_factory import ClientFactory, ServiceName
from mld.aws.wire.client import WireService

if TYPE_CHECKING:
    from botocore.client import BaseClient

AwsService = BotoService | WireService


def service_of(
    factory: ClientFactory,
    name: ServiceName,
    *,
    label: str,
    lean: bool,
    threads_max: int,
    calls_max: int,
    read_timeout_s: float,
    connect_timeout_s: float,
) -> AwsService:
    """Return a service that is not open yet; `label` is for threads and messages. Does no I/O.

    The lean client has up to `calls_max` calls under way, few of which need a thread.
    """

    def client() -> BaseClient:
        made = factory.create_client(
            name,
            read_timeout_s=read_timeout_s,
            connect_timeout_s=connect_timeout_s,
            pool_connections_max=threads_max,
        )
        if name in ("kinesis", "dynamodbstreams"):
            keep_raw_body(made, "GetRecords")
        return made

    plain = BotoService(client, threads_max=threads_max, name=label)
    if not lean:
        return plain
    return WireService(
        plain,
        credentials=lambda: factory.credentials_of(name),
        ca_bundle=lambda: factory.ca_bundle_of(name),
        threads_max=threads_max,
        calls_max=calls_max,
        name=label,
        read_timeout_s=read_timeout_s,
        connect_timeout_s=connect_timeout_s,
        service_time=factory.service_time,
    )
