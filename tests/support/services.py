"""Our AWS clients, pointed at a server of the tests."""

from __future__ import annotations

from botocore.credentials import Credentials

from mld.aws.botocore_answers import keep_raw_body
from mld.aws.client import BotoService
from mld.aws.service_time import ServiceTime
from mld.aws.wire.client import WireService
from tests.support.patience import PATIENCE_S
from tests.support.servers import ACCOUNT, ServerProcess

THREADS_MAX = 20


def boto_service(server: ServerProcess, service: str = "dynamodb") -> BotoService:
    client = server.client(service)
    if service == "kinesis":
        keep_raw_body(client, "GetRecords")
    return BotoService(lambda: client, threads_max=THREADS_MAX, name=service)


def wire_service(server: ServerProcess, service: str = "dynamodb") -> WireService:
    return WireService(
        boto_service(server, service),
        credentials=lambda: Credentials(ACCOUNT, "local"),
        ca_bundle=lambda: None,
        threads_max=4,
        calls_max=4,
        name=service,
        read_timeout_s=PATIENCE_S,
        connect_timeout_s=PATIENCE_S,
        service_time=ServiceTime(),
    )
