"""Settings -> botocore clients: credentials, region and endpoint of each service.

Rules: configuration#region-choice, configuration#credentials-in-use. Kinesis, DynamoDB and CloudWatch each have their
own, the last two falling back to those of Kinesis. The SDK's retries are off: retries belong to our callers. All
clients share what is known of AWS's clock (`ServiceTime`).

Importing this module is cheap, creating the first client is not (it imports botocore and reads service models: about
0.3 s together). `create_client` blocks and may be called from several threads.

`service_of` makes the services of a daemon: botocore's client in a few threads, before it the lean one if that is
wanted. `CountedService` counts their requests. DynamoDB is asked to say which capacity a request has used, which costs
nothing. What failed without an answer has used an unknown amount; a write that was refused for its condition has used a
unit, as lease rows have less than 1 KB.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mld import __version__
from mld.aws.botocore_answers import keep_raw_body, limit_answers, limit_fetcher
from mld.aws.client import BotoService
from mld.aws.service import FrameSource
from mld.aws.service_time import ServiceTime
from mld.aws.table_calls import REFUSED_CODE, THROTTLING_CODES
from mld.aws.wire.client import WireService
from mld.core.errors import AwsError, MldError, StartupError
from mld.metrics.reach import TableReach
from mld.metrics.worker import WorkerMetrics
from mld.properties.credentials import CredentialsChain
from mld.properties.settings import ClientSettings, Settings

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import Credentials
    from botocore.loaders import Loader
    from botocore.session import Session

    from mld.aws.credentials import CredentialsResolver, ResolvedCredentials

logger = logging.getLogger(__name__)

USER_AGENT_TOKEN = f"mld/{__version__}"
CONNECT_TIMEOUT_S = 3.0
BUCKET_CONNECT_TIMEOUT_S = 10.0


def bucket_client(
    credentials: CredentialsChain,
    *,
    region: str | None,
    endpoint_url: str | None,
    path_style: bool,
    timeout_s: float,
    connections_max: int,
) -> BaseClient:
    """Return a client of S3 for a program that is no daemon. Does I/O: credentials are looked for. Raises
    StartupError.
    """
    access = ClientSettings(
        credentials=credentials, region=region, endpoint=endpoint_url, dualstack=False, fips=False, proxy_url=None
    )
    return ClientFactory({}, region_name=region).create_client(
        "s3",
        read_timeout_s=timeout_s,
        connect_timeout_s=BUCKET_CONNECT_TIMEOUT_S,
        pool_connections_max=connections_max,
        access=access,
        s3={"addressing_style": "path" if path_style else "auto"},
    )


def client_factory(settings: Settings, service_time: ServiceTime | None = None) -> ClientFactory:
    """Return the factory of all clients of one daemon, which share what is known of AWS's time. Does no I/O yet."""
    access = {
        "kinesis": settings.kinesis,
        "dynamodbstreams": settings.kinesis,
        "dynamodb": settings.dynamo_db,
        "cloudwatch": settings.cloud_watch,
    }
    return ClientFactory(access, region_name=settings.region_name, service_time=service_time)


class ClientFactory:
    """Makes clients. Services with the same credentials value share one set of credentials and its refreshes."""

    def __init__(
        self,
        access: Mapping[str, ClientSettings],
        *,
        region_name: str | None,
        service_time: ServiceTime | None = None,
    ) -> None:
        self._access = access
        self._region_name = region_name
        self.service_time = service_time or ServiceTime()
        self._lock = threading.Lock()  # botocore sessions are not safe to share between threads while creating clients
        self._loader: Loader | None = None
        self._resolver: CredentialsResolver | None = None
        self._resolved: dict[CredentialsChain, ResolvedCredentials] = {}
        self._sessions: dict[CredentialsChain, Session] = {}
        self._instance_region: str | None = None

    def access_beside_kinesis(self, region: str | None, endpoint_url: str | None) -> ClientSettings:
        """Return how a service is reached with the credentials of Kinesis; None: in its region, at its own endpoint."""
        kinesis = self._access["kinesis"]
        return replace(kinesis, region=region or kinesis.region, endpoint=endpoint_url)

    def create_client(
        self,
        service: str,
        *,
        read_timeout_s: float,
        connect_timeout_s: float,
        pool_connections_max: int,
        access: ClientSettings | None = None,
        s3: Any = None,
    ) -> BaseClient:
        """Return a client that makes one attempt per call, and another one if it was refused for our clock only.

        Without `access` it is a service that the settings know. Raises StartupError when no credentials provider yields
        any, or when no region is known.
        """
        access = access or self._access[service]
        started_at = time.monotonic()
        from botocore import UNSIGNED
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        with self._lock:
            try:
                resolved = self._credentials(access.credentials)
                session = self._session_with(access.credentials, resolved)
                region = self._region(access, session)
                config = Config(
                    connect_timeout=connect_timeout_s,
                    read_timeout=read_timeout_s,
                    max_pool_connections=pool_connections_max,
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    user_agent_extra=USER_AGENT_TOKEN,
                    tcp_keepalive=True,
                    proxies=None if access.proxy_url is None else dict.fromkeys(("http", "https"), access.proxy_url),
                    use_dualstack_endpoint=access.dualstack or None,
                    use_fips_endpoint=access.fips or None,
                    signature_version=UNSIGNED if resolved.credentials is None else None,
                    s3=s3,
                )
                client: BaseClient = session.create_client(
                    service, region_name=region, endpoint_url=access.endpoint, config=config
                )
            except (BotoCoreError, ValueError) as error:
                raise StartupError(f"the {service} client cannot be created: {error}") from error
        logger.info(
            "%s client ready",
            service,
            extra={"action": "aws_client", "region": region, "endpoint": client.meta.endpoint_url,
                   "credentials": resolved.provider, "took_ms": round((time.monotonic() - started_at) * 1000, 1)},
        )  # fmt: skip
        return client

    def credentials_of(self, service: str) -> Credentials | None:
        """Return those that the clients of `service` sign with, refreshed by themselves; None: requests go unsigned."""
        with self._lock:
            return self._credentials(self._access[service].credentials).credentials

    def provider_of(self, service: str) -> str:
        """Return the provider that yielded the credentials of `service`."""
        with self._lock:
            return self._credentials(self._access[service].credentials).provider

    def ca_bundle_of(self, service: str) -> str | None:
        """Return the file that the environment or the profile names for verifying servers."""
        with self._lock:
            chain = self._access[service].credentials
            bundle = self._session_with(chain, self._credentials(chain)).get_config_variable("ca_bundle")
        return None if bundle is None else str(bundle)

    def _credentials(self, chain: CredentialsChain) -> ResolvedCredentials:
        from mld.aws.credentials import CredentialsResolver

        if self._resolver is None:
            self._resolver = CredentialsResolver(self._new_session, self.service_time, region_name=self._region_name)
        if chain not in self._resolved:
            self._resolved[chain] = self._resolver.resolve(chain)
        return self._resolved[chain]

    def _session_with(self, chain: CredentialsChain, resolved: ResolvedCredentials) -> Session:
        """Return one session for all clients of a chain, as making one takes 10 ms."""
        if chain not in self._sessions:
            session = self._new_session(None)
            session.register_component("credential_provider", _Fixed(resolved))
            self._sessions[chain] = session
        return self._sessions[chain]

    def _new_session(self, profile: str | None) -> Session:
        """Return a session for `profile`; all share one loader, which keeps the service models it has read."""
        from botocore.session import Session

        session = Session(profile=profile)
        make = session.create_client
        session.create_client = lambda *names, **options: limit_answers(make(*names, **options))  # type: ignore[method-assign]
        self.service_time.attach(session)
        if self._loader is None:
            self._loader = session.get_component("data_loader")
            self._loader.file_loader.load_file = lean_data  # type: ignore[method-assign]
        else:
            session.register_component("data_loader", self._loader)
        return session

    def _region(self, access: ClientSettings, session: Session) -> str:
        region = access.region or session.get_config_variable("region") or self._region_of_the_instance(session)
        if region is None:
            raise StartupError(
                "no region is known: set regionName, AWS_REGION or the region of the profile, or use streamArn"
            )
        return str(region)

    def _region_of_the_instance(self, session: Session) -> str | None:
        from botocore.utils import IMDSRegionProvider

        if self._instance_region is None:
            provider = IMDSRegionProvider(session)
            limit_fetcher(provider._get_fetcher())  # type: ignore[attr-defined]
            self._instance_region = provider.provide()
        return self._instance_region


class _Fixed:
    """Stands in for botocore's own resolver in a session whose credentials are already known."""

    def __init__(self, resolved: ResolvedCredentials) -> None:
        self._resolved = resolved

    def load_credentials(self) -> object:
        return self._resolved.credentials


# --- data files of botocore ------------------------------------------------------------------------------------------

SERVICES = frozenset(
    ("dynamodb", "glue", "kinesis", "monitoring", "s3", "sqs", "streams.dynamodb")
    + ("oidc", "portal.sso", "signin", "sts")  # which credentials come from
)
"""Those that mld needs, by the prefix of their endpoints."""
ENDPOINTS = "endpoints"


def lean_data(file_path: str) -> Any:
    """Return the data in a file of botocore, whose path comes without its ending, as botocore's own loader does; None
    if there is no file.

    Without what no client of mld needs: all services in all regions, and the documentation of every operation and
    shape. They take 11 MB of the 60 that a daemon has at rest.
    """
    for path, opened in ((Path(f"{file_path}.json"), open), (Path(f"{file_path}.json.gz"), gzip.open)):
        if path.is_file():
            with opened(path, "rb") as file:
                data = json.loads(file.read(), object_hook=_without_documentation)
            for partition in data["partitions"] if path.name.startswith(f"{ENDPOINTS}.") else ():
                services = partition["services"].items()
                partition["services"] = {name: endpoints for name, endpoints in services if name in SERVICES}
            return data
    return None


def _without_documentation(found: dict[str, Any]) -> dict[str, Any]:
    """Return empty, not absent: botocore asks for some of it. A shape may have a member of that name, which is no
    text.
    """
    if isinstance(found.get("documentation"), str):
        found["documentation"] = ""
    return found


AwsService = BotoService | WireService


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
    """Return a service that is not open yet; `label` is for threads and messages. Does no I/O.

    With `calls_max` it is the lean one, which has up to so many calls under way, few of which need a thread. `access`
    is as for `ClientFactory.create_client`.
    """
    connect_timeout_s = min(CONNECT_TIMEOUT_S, read_timeout_s)

    def client() -> BaseClient:
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

    plain = BotoService(client, threads_max=threads_max, name=label)
    if calls_max is None:
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


T = TypeVar("T")

OK, UNREACHABLE, OTHER = "ok", "unreachable", "other"
RESULTS_MAX = 500
"""Of one service, by operation and result: error codes come from outside, and each makes a series for ever."""
CODE_LENGTH_MAX = 64
READ, WRITE = "read", "write"
KINDS: Mapping[str, str] = {
    "GetItem": READ,
    "BatchGetItem": READ,
    "Query": READ,
    "Scan": READ,
    "TransactGetItems": READ,
    "PutItem": WRITE,
    "UpdateItem": WRITE,
    "DeleteItem": WRITE,
    "BatchWriteItem": WRITE,
    "TransactWriteItems": WRITE,
}
"""Operations on items; no other service has one of that name."""


class CountedService:
    """`service` as it is, counted in `worker` under `name`; `reach` hears of the answers of its table."""

    def __init__(
        self,
        service: AwsService,
        name: str,
        worker: WorkerMetrics,
        reach: TableReach | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._reach = reach
        self._monotonic = monotonic
        self._name = name
        self._worker = worker
        self._keys: dict[tuple[str, str], str] = {}
        self._ok_keys: dict[str, str] = {}

    @property
    def can_stream(self) -> bool:
        """See `WireService.can_stream`."""
        return isinstance(self._service, WireService) and self._service.can_stream

    async def open(self) -> None:
        await self._service.open()

    async def close(self) -> None:
        await self._service.close()

    async def call(self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None) -> dict[str, Any]:
        """See `Service.call`."""
        kind = KINDS.get(operation)
        asked = params if kind is None else {**params, "ReturnConsumedCapacity": "TOTAL"}
        request = self._counted(operation, self._service.call(operation, asked, timeout_s=timeout_s))
        reach = self._reach
        is_of_table = reach is not None and params.get("TableName") == reach.table
        answer = await (self._reaching(reach, request) if reach is not None and is_of_table else request)
        if kind is not None:
            self._charge(kind, answer.get("ConsumedCapacity"))
        return answer

    async def fetch(
        self, operation: str, params: dict[str, Any], read: Callable[[bytes], T], *, timeout_s: float | None = None
    ) -> T:
        """See `RawService.fetch`."""
        return await self._counted(operation, self._service.fetch(operation, params, read, timeout_s=timeout_s))

    async def open_stream(
        self, operation: str, params: dict[str, Any], *, timeout_s: float | None = None
    ) -> FrameSource:
        """See `StreamService.open_stream`."""
        assert isinstance(self._service, WireService), "it was asked whether it can"
        return await self._counted(operation, self._service.open_stream(operation, params, timeout_s=timeout_s))

    async def in_thread(self, operation: str, work: Callable[[], T]) -> T:
        """See `StreamService.in_thread`; no request."""
        assert isinstance(self._service, WireService), "it was asked whether it can stream"
        return await self._service.in_thread(operation, work)

    async def _reaching(self, reach: TableReach, request: Awaitable[T]) -> T:
        """Make a request to the table of `reach`. A condition that does not hold is an answer."""
        sent_at = self._monotonic()
        reach.asked(sent_at)
        try:
            answer = await request
        except MldError as error:
            code = error.code if isinstance(error, AwsError) else ""
            if code == REFUSED_CODE:
                reach.answered(sent_at)
            else:
                reach.failed(str(error), self._monotonic(), is_throttled=code in THROTTLING_CODES)
            raise
        reach.answered(sent_at)
        return answer

    # --- counting -----------------------------------------------------------------------------------------------------

    async def _counted(self, operation: str, request: Awaitable[T]) -> T:
        try:
            answer = await request
        except MldError as error:
            self._failed(operation, error)
            raise
        self._worker.requests.add(self._ok_keys.get(operation) or self._ok_key(operation))
        return answer

    def _failed(self, operation: str, error: MldError) -> None:
        self._note(operation, error.code if isinstance(error, AwsError) else UNREACHABLE)
        if KINDS.get(operation) == WRITE and isinstance(error, AwsError) and error.code == REFUSED_CODE:
            self._worker.units.add(WRITE, 1)

    def _note(self, operation: str, result: str) -> None:
        key = self._keys.get((operation, result))
        if key is None:
            key = self._new_key(operation, result)
        self._worker.requests.add(key)

    def _ok_key(self, operation: str) -> str:
        key = self._ok_keys[operation] = f"{self._name} {operation} {OK}"
        return key

    def _new_key(self, operation: str, result: str) -> str:
        is_plain = result.isascii() and result.isalnum() and len(result) <= CODE_LENGTH_MAX
        if not is_plain or len(self._keys) >= RESULTS_MAX:
            return f"{self._name} {operation} {OTHER}"
        key = self._keys[operation, result] = f"{self._name} {operation} {result}"
        return key

    def _charge(self, kind: str, consumed: Any) -> None:
        for one in consumed if isinstance(consumed, list) else (consumed,):
            units = one.get("CapacityUnits") if isinstance(one, dict) else None
            if isinstance(units, int | float) and units >= 0:
                self._worker.units.add(kind, units)
