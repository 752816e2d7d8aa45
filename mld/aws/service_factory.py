"""`service_of`: makes the client of one AWS service for a daemon, as the `Service` port: over botocore alone
(`BotoService`), or for frequent calls over sockets of our own, with botocore for the rare ones (`WireService`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mld.aws.botocore_answers import keep_raw_body
from mld.aws.client import BotoService
from mld.aws.client_factory import CONNECT_TIMEOUT_S, ClientFactory
from mld.properties.settings import ClientSettings

if TYPE_CHECKING:
    from botocore.client import BaseClient

    from mld.aws.wire.client import WireService


AwsService: TypeAlias = "BotoService | WireService"


def service_of(
    factory: ClientFactory,
    name: str,
    *,
    label: str,
    threads_max: int,
    read_timeout_s: float,
    calls_max: int | None = None,
    access: ClientSettings | None = None,
) -> AwsService:
    """Return a service that is not open yet. `label` is its name in the names of threads and in messages. Does no I/O.

    With `calls_max` the service uses the wire client, with at most that many calls under way at a time; few of them
    need a thread. `access` is as for `ClientFactory.create_client`.
    """
    connect_timeout_s = min(CONNECT_TIMEOUT_S, read_timeout_s)

    def client() -> BaseClient:
        """Make the client of botocore."""
        made = factory.create_client(
            name,
            read_timeout_s=read_timeout_s,
            connect_timeout_s=connect_timeout_s,
            pool_connections_max=threads_max,
            access=access,
        )
        if name in ("kinesis", "dynamodbstreams"):
            keep_raw_body(made, "GetRecords")
        return made

    source_of = partial(factory.address_source, name, access=access)
    plain = BotoService(client, threads_max=threads_max, name=label, source_of=source_of)
    if calls_max is None:
        return plain
    from mld.aws.wire.client import WireService

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
