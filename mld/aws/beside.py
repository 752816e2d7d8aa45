"""Services beside Kinesis and DynamoDB, asked now and then: dead letters, schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mld.aws.client import BotoService
from mld.aws.client_factory import BesideName, ClientFactory

if TYPE_CHECKING:
    from botocore.client import BaseClient


def beside_service(
    factory: ClientFactory,
    name: BesideName,
    region: str | None,
    endpoint: str | None,
    *,
    label: str,
    timeout_s: float,
    threads_max: int,
) -> BotoService:
    """Return a service with the credentials of Kinesis, not open yet, and in its region unless there is another."""

    def client() -> BaseClient:
        return factory.create_beside(name, region=region, endpoint_url=endpoint, timeout_s=timeout_s)

    return BotoService(client, threads_max=threads_max, name=label)
