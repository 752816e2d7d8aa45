"""`ClientFactory`: makes botocore clients from settings: credentials, region and endpoint of each service.

Rules: configuration#region-choice, configuration#credentials-in-use. Kinesis, DynamoDB and CloudWatch each have
settings of their own; the last two fall back to those of Kinesis. The SDK's retries are off, because our callers retry.
All clients share one measurement of AWS's clock (`ServiceTime`).

Importing this module is cheap. Creating the first client is not: it imports botocore and reads service models, which
takes about 0.3 s. `create_client` blocks, and may be called from several threads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mld import __version__
from mld.aws.address_source import address_source
from mld.aws.botocore_answers import limit_answers, limit_fetcher
from mld.aws.botocore_data import AnyService, lean_data
from mld.aws.botocore_time import correct_clock
from mld.aws.boundary import reason_of
from mld.aws.service_time import ServiceTime
from mld.core.errors import StartupError
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
    """Return a client of S3 for programs other than the daemon. Does I/O to find credentials. Raises StartupError."""
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
    """Return the factory for all clients of a daemon. They share one measurement of AWS's time. Does no I/O yet."""
    access = {
        "kinesis": settings.kinesis,
        "dynamodbstreams": settings.kinesis,
        "dynamodb": settings.dynamo_db,
        "cloudwatch": settings.cloud_watch,
    }
    return ClientFactory(access, region_name=settings.region_name, service_time=service_time)


class ClientFactory:
    """Makes clients. Services with equal credentials settings share one set of credentials and its renewals."""

    def __init__(
        self,
        access: Mapping[str, ClientSettings],
        *,
        region_name: str | None,
        service_time: ServiceTime | None = None,
    ) -> None:
        """Make a factory. `access` has the settings of each service by name; `region_name` is the region in which STS
        is called if nothing else names one.
        """
        self._access = access
        self._region_name = region_name
        self.service_time = service_time or ServiceTime()
        self._lock = threading.Lock()  # two threads must not create clients from one botocore session at a time
        self._loader: Loader | None = None  # reads service models; shared by all sessions
        self._resolver: CredentialsResolver | None = None
        self._resolved: dict[CredentialsChain, ResolvedCredentials] = {}
        self._sessions: dict[CredentialsChain, Session] = {}
        self._instance_region: str | None = None  # of the EC2 instance, once it was found out

    def access_as_kinesis(self, region: str | None, endpoint_url: str | None) -> ClientSettings:
        """Return the settings for a client of another service with the credentials of Kinesis.

        Without `region` it uses the region of Kinesis, and without `endpoint_url` the usual endpoint of the service.
        """
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
        """Return a client that makes one attempt per call. It repeats only a call that was refused because our clock is
        wrong.

        `access` may be left out for the services that have settings: Kinesis, DynamoDB with its streams, CloudWatch.
        Raises StartupError if no provider yields credentials, or if no region is known.
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
                raise StartupError(f"the {service} client cannot be created: {reason_of(error)}") from error
        logger.info(
            "%s client ready",
            service,
            extra={"action": "aws_client", "region": region, "endpoint": client.meta.endpoint_url,
                   "credentials": resolved.provider, "took_ms": round((time.monotonic() - started_at) * 1000, 1)},
        )  # fmt: skip
        return client

    def address_source(self, service: str, client: BaseClient, access: ClientSettings | None = None) -> str:
        """Return the setting that decides to which address a client of this factory connects; see
        `mld.aws.address_source`.
        """
        return address_source(service, client, access or self._access[service])

    def credentials_of(self, service: str) -> Credentials | None:
        """Return the credentials that the clients of `service` sign with; they renew themselves. None: requests go
        unsigned.
        """
        with self._lock:
            return self._credentials(self._access[service].credentials).credentials

    def provider_of(self, service: str) -> str:
        """Return the name of the provider that yielded the credentials of `service`."""
        with self._lock:
            return self._credentials(self._access[service].credentials).provider

    def ca_bundle_of(self, service: str) -> str | None:
        """Return the path of the CA bundle that the environment or the profile names for verifying servers; None: the
        default bundle is used.
        """
        with self._lock:
            chain = self._access[service].credentials
            bundle = self._session_with(chain, self._credentials(chain)).get_config_variable("ca_bundle")
        return None if bundle is None else str(bundle)

    def _credentials(self, chain: CredentialsChain) -> ResolvedCredentials:
        """Return the credentials of a chain. They are looked up once, and shared by all services with this chain."""
        from mld.aws.credentials import CredentialsResolver

        if self._resolver is None:
            self._resolver = CredentialsResolver(self._new_session, self.service_time, region_name=self._region_name)
        if chain not in self._resolved:
            self._resolved[chain] = self._resolver.resolve(chain)
        return self._resolved[chain]

    def _session_with(self, chain: CredentialsChain, resolved: ResolvedCredentials) -> Session:
        """Return the session for all clients with these credentials. It is made once, because that takes 10 ms."""
        if chain not in self._sessions:
            session = self._new_session(None)
            session.register_component("credential_provider", _Fixed(resolved))
            self._sessions[chain] = session
        return self._sessions[chain]

    def _new_session(self, profile: str | None) -> Session:
        """Return a new session for `profile` (None: the active one). All clients that it makes limit the size of
        answers (`limit_answers`) and sign with AWS's time (`correct_clock`).

        All sessions share one loader of botocore's data files, which keeps what it has read. It is the loader of the
        first session, changed so that it leaves out what mld never uses (`lean_data`) and does not list all services
        (`AnyService`).
        """
        from botocore.session import Session

        session = Session(profile=profile)
        make = session.create_client
        session.create_client = lambda *args, **options: limit_answers(make(*args, **options))  # type: ignore[method-assign]
        correct_clock(session, self.service_time)
        if self._loader is None:
            self._loader = session.get_component("data_loader")
            self._loader.file_loader.load_file = lean_data  # type: ignore[method-assign]
            any_service: Any = AnyService()
            self._loader.list_available_services = lambda type_name: any_service  # type: ignore[method-assign]
        else:
            session.register_component("data_loader", self._loader)
        return session

    def _region(self, access: ClientSettings, session: Session) -> str:
        """Return the region for a client. Raises StartupError if no region is known."""
        region = access.region or session.get_config_variable("region") or self._region_of_the_instance(session)
        if region is None:
            raise StartupError(
                "no region is known: set regionName, AWS_REGION or the region of the profile, or use streamArn"
            )
        return str(region)

    def _region_of_the_instance(self, session: Session) -> str | None:
        """Return the region of the EC2 instance that we run on, as its metadata service reports it; None if the
        metadata service does not answer. A known region is not asked for again.
        """
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
