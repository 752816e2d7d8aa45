"""`opened`: opens clients of AWS for commands, with the credentials and endpoints of a properties file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from mld.aws.client_factory import client_factory
from mld.aws.service import RawService
from mld.aws.service_factory import service_of
from mld.aws.service_time import ServiceTime
from mld.core.errors import TableMissingError
from mld.properties.settings import Settings

T = TypeVar("T")

REQUEST_TIMEOUT_S = 10.0
THREADS = 4  # a large table is scanned in several segments at once


async def if_there(asking: Awaitable[T], otherwise: T) -> T:
    """Await a read of a table, and return the result; return `otherwise` if the table does not exist. Raises
    TableError.
    """
    try:
        return await asking
    except TableMissingError:
        return otherwise


@asynccontextmanager
async def opened(
    settings: Settings,
    name: str,
    label: str,
    timeout_s: float = REQUEST_TIMEOUT_S,
    service_time: ServiceTime | None = None,
) -> AsyncIterator[RawService]:
    """Open a client of a service; it is closed when the context ends. `service_time` learns AWS's time from the
    answers.

    Raises errors of `mld.core.errors`.
    """
    service = service_of(
        client_factory(settings, service_time),
        name,
        label=label,
        threads_max=THREADS,
        read_timeout_s=timeout_s,
    )
    await service.open()
    try:
        yield service
    finally:
        await service.close()


def dynamo_of(settings: Settings, service_time: ServiceTime | None = None) -> AbstractAsyncContextManager[RawService]:
    """Open a client of DynamoDB."""
    return opened(settings, "dynamodb", "DynamoDB", service_time=service_time)
