"""`Examination`: what the probes of `mld doctor` share: settings, clients of AWS, and all findings so far.

A probe ends at the first failure, because its later steps need the earlier ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from mld.aws.client import BotoService
from mld.aws.client_factory import ClientFactory, client_factory
from mld.aws.wire.proxies import proxies_of
from mld.core.errors import MldError, StartupError
from mld.core.streams import Shard
from mld.operating import findings
from mld.operating.endpoint_probe import endpoint_finding, endpoints_of
from mld.operating.findings import Diagnosis, fail, ok, refusal, warn
from mld.operating.fleet_sight import Listed
from mld.properties.settings import Settings

TIMEOUT_S = 10.0
LABELS: dict[str, str] = {
    "kinesis": "Kinesis",
    "dynamodbstreams": "DynamoDB Streams",
    "dynamodb": "DynamoDB",
    "cloudwatch": "CloudWatch",
}


class ProbeEnded(Exception):
    """Raised if a probe cannot go on. The arguments are its last findings."""


class Examination:
    """One run of `mld doctor`, on a properties file with one stream or several."""

    def __init__(self, settings: Settings, properties_file: str) -> None:
        self.settings = settings
        self.file = properties_file
        self.factory = client_factory(settings)
        self.shards: tuple[Shard, ...] | None = None
        """All shards that could be listed; None if no stream could be listed."""
        self.listed: dict[str | None, Listed] = {}
        """What the service lists of each stream, by the label of the stream; streams that refused are absent."""
        self.found: list[Diagnosis] = []

    async def run(self, *probes: Awaitable[None]) -> None:
        """Run the probes one after the other. A probe that cannot go on does not keep the next ones from running."""
        for probe in probes:
            try:
                await probe
            except ProbeEnded as ended:
                self.found += ended.args

    def require(self, *found: Diagnosis) -> None:
        """Add these findings. If one of them is a failure, end the probe."""
        if not findings.is_well(found):
            raise ProbeEnded(*found)
        self.found += found

    @asynccontextmanager
    async def reached(self, name: str, stream_arn: str | None = None) -> AsyncIterator[BotoService]:
        """Examine the credentials and endpoints of the service `name` (a key of LABELS), add the findings, and yield an
        open client of it. Raises ProbeEnded if one of them is bad, or if a call inside the context fails.
        """
        label = LABELS[name]
        service = BotoService(lambda: _client(self.factory, name), threads_max=1, name=label)
        try:
            await service.open()
            urls = await service.with_client(partial(endpoints_of, stream_arn=stream_arn))
            proxies, region = await service.with_client(lambda client: (proxies_of(client), client.meta.region_name))
            source = await service.with_client(partial(self.factory.address_source, name))
            found = [self._credentials(name, label)]
            bundle = await asyncio.to_thread(self.factory.ca_bundle_of, name)
            for url in urls:
                proxy = proxies(url)
                through = None if proxy is None else str(proxy)
                one = await endpoint_finding(f"{label} endpoint", url, through, bundle, source)
                found.append(replace(one, words=f"{region}: {one.words}"))
            self.require(*found)
            yield service
        except StartupError as error:
            remedy = "see docs/use/configuration.md, credentials"
            raise ProbeEnded(fail(f"{label} credentials", str(error), remedy)) from error
        except MldError as error:
            raise ProbeEnded(fail(label, str(error), "see the message")) from error
        finally:
            await service.close()

    def _credentials(self, name: str, label: str) -> Diagnosis:
        """Return a finding about the credentials of one service: which provider gives them, and how long they are
        valid.
        """
        about = f"{label} credentials"
        credentials = self.factory.credentials_of(name)
        provider = self.factory.provider_of(name)
        if credentials is None:
            return warn(about, f"{provider}: requests are not signed", "AWS answers signed requests only")
        frozen = credentials.get_frozen_credentials()
        expiry = getattr(credentials, "_expiry_time", None)
        until = "" if expiry is None else f", until {expiry.isoformat(timespec='seconds')}, refreshed before"
        kind = "temporary key" if frozen.token else "key"
        return ok(about, f"{provider}, {kind} {findings.key_hint(frozen.access_key)} ({credentials.method}){until}")

    async def call(
        self, service: BotoService, about: str, action: str, params: dict[str, Any], missing: str = ""
    ) -> dict[str, Any]:
        """Make the call `action`, such as ``kinesis:ListShards``, and return the answer.

        The call changes nothing: it only reads, or it is a write whose condition is never met, which shows that the
        write is permitted. For such a write, return an empty answer. Any other failure raises ProbeEnded with a finding
        on `about`; `missing` is the remedy if the stream or table does not exist.
        """
        try:
            answer = await service.call(action.partition(":")[2], params, timeout_s=TIMEOUT_S)
        except MldError as error:
            if findings.is_harmless_refusal(error):
                return {}
            raise ProbeEnded(refusal(about, action, error, missing)) from error
        return answer

    def open_shards(self) -> int | None:
        """Return how many of `shards` are open; None if no stream could be listed."""
        return None if self.shards is None else sum(shard.is_open for shard in self.shards)


def _client(factory: ClientFactory, name: str) -> Any:
    """Return a client for the service `name`, with a single connection and short timeouts."""
    return factory.create_client(
        name, read_timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S / 2, pool_connections_max=1
    )
