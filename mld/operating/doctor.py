"""`mld doctor`: looks at everything that a daemon needs, in the order in which it needs it, and says what is wrong.

It changes nothing: reads are real and small, and writes have a condition that no row can meet, so that DynamoDB refuses
them after it has looked at the permission. What cannot be tried without an effect is named as not tried. Nothing that
depends on a failed step is tried after it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from mld.aws.client import BotoService
from mld.aws.client_factory import ClientFactory, client_factory
from mld.aws.wire.requests import proxies_of
from mld.check.refusals import faults_of
from mld.core.disks import DiskPlace, room_of
from mld.core.errors import AwsError, MldError, StartupError, StreamError, TableError
from mld.core.installed import find_executable, runnable
from mld.core.streams import IteratorType, Shard, StartingPoint, StreamKind
from mld.core.terminal import FILE_VARIABLE
from mld.fleet.report.reports import WorkerReport
from mld.fleet.report.reports_table import ReportsTable
from mld.leases.owner_index import INDEX_NAME
from mld.leases.rows import KEY, REPORTS_TABLE_KEY, Place
from mld.operating import findings
from mld.operating.daemon_link import WantedDaemon, find_daemons
from mld.operating.faults import FleetSight, Listed
from mld.operating.findings import Diagnosis, Health, fail, ok, refusal, warn
from mld.operating.fleet_reader import fleet_reader, view_rules
from mld.operating.naming import settings_of_one
from mld.operating.one_stream import OTHER_FORM
from mld.operating.stream_access import all_shards, streams_of
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings
from mld.properties.spark_names import PROGRAM
from mld.properties.values import ClientVersionConfig, DeadLetterKind, MetricsLevel, MetricsOutput
from mld.protocol.child_command import split_command
from mld.retrieval.reader_factory import kind_of

TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
_PORTS = {"http": 80, "https": 443}
SPARK_CHECK_TIMEOUT_S = 120.0
NO_TABLE_STREAM = "check streamArn: the table's LatestStreamArn, which changes when the stream is switched off and on"
NO_STREAM = "check streamName or streamArn, regionName and the account of the credentials"
LABELS: dict[str, str] = {
    "kinesis": "Kinesis",
    "dynamodbstreams": "DynamoDB Streams",
    "dynamodb": "DynamoDB",
    "cloudwatch": "CloudWatch",
}


class ProbeEnded(Exception):
    """A probe cannot go on; its arguments are what was found at last."""


class Doctor:
    """One examination: probes, each of which ends at the first thing that it cannot do without."""

    def __init__(self, settings: Settings, properties_file: str, places: Sequence[DiskPlace] = ()) -> None:
        self._settings = settings
        self._file = properties_file
        self._places = places
        self._factory = client_factory(settings)
        self._shards: tuple[Shard, ...] | None = None
        self._listed: dict[str | None, Listed] = {}  # by the label of the stream, if it could be listed
        self._found: list[Diagnosis] = []

    async def examine(self) -> list[Diagnosis]:
        """Return everything that was found, in the order of the examination."""
        await self._run(self._streams(), self._dynamo(), self._cloudwatch())
        self._found.append(self._clock())
        await self._run(self._programs())
        self._found += [*self._dead_letter(), *await asyncio.to_thread(self._disks), self._files()]
        self._found += await asyncio.to_thread(lambda: list(self._daemons_here()))
        scrub = Scrubber()
        found = findings.with_one_remedy(self._found)
        return [replace(one, words=scrub(one.words), remedy=scrub(one.remedy)) for one in found]

    async def _run(self, *probes: Awaitable[None]) -> None:
        for probe in probes:
            try:
                await probe
            except ProbeEnded as ended:
                self._found += ended.args

    def _require(self, *found: Diagnosis) -> None:
        """Note what was found; the probe ends unless all is well."""
        if not findings.is_well(found):
            raise ProbeEnded(*found)
        self._found += found

    # --- services -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _reached(self, name: str, stream_arn: str | None = None) -> AsyncIterator[BotoService]:
        """Look for credentials and endpoints, and open the service if all are there."""
        label = LABELS[name]
        service = BotoService(lambda: _client(self._factory, name), threads_max=1, name=label)
        try:
            await service.open()
            urls = await service.with_client(partial(endpoints_of, stream_arn=stream_arn))
            proxies, region = await service.with_client(lambda client: (proxies_of(client), client.meta.region_name))
            found = [self._credentials(name, label)]
            bundle = await asyncio.to_thread(self._factory.ca_bundle_of, name)
            for url in urls:
                proxy = proxies(url)
                one = await endpoint_finding(f"{label} endpoint", url, None if proxy is None else str(proxy), bundle)
                found.append(replace(one, words=f"{region}: {one.words}"))
            self._require(*found)
            yield service
        except StartupError as error:
            remedy = "see docs/use/configuration.md, credentials"
            raise ProbeEnded(fail(f"{label} credentials", str(error), remedy)) from error
        except MldError as error:
            raise ProbeEnded(fail(label, str(error), "see the message")) from error
        finally:
            await service.close()

    def _credentials(self, name: str, label: str) -> Diagnosis:
        about = f"{label} credentials"
        credentials = self._factory.credentials_of(name)
        provider = self._factory.provider_of(name)
        if credentials is None:
            return warn(about, f"{provider}: requests are not signed", "AWS answers signed requests only")
        frozen = credentials.get_frozen_credentials()
        expiry = getattr(credentials, "_expiry_time", None)
        until = "" if expiry is None else f", until {expiry.isoformat(timespec='seconds')}, refreshed before"
        kind = "temporary key" if frozen.token else "key"
        return ok(about, f"{provider}, {kind} {findings.key_hint(frozen.access_key)} ({credentials.method}){until}")

    async def _call(
        self, service: BotoService, about: str, action: str, params: dict[str, Any], missing: str = ""
    ) -> dict[str, Any]:
        """Make a call that changes nothing, ``kinesis:ListShards``; what its failure means ends the probe."""
        try:
            answer = await service.call(action.partition(":")[2], params, timeout_s=TIMEOUT_S)
        except MldError as error:
            if findings.is_harmless_refusal(error):
                return {}
            raise ProbeEnded(refusal(about, action, error, missing)) from error
        return answer

    def _clock(self) -> Diagnosis:
        """Judge this machine's clock by the dates of all answers."""
        known = self._factory.service_time
        return findings.clock_finding(known.offset_s if known.is_measured else None)

    # --- streams ------------------------------------------------------------------------------------------------------

    async def _streams(self) -> None:
        """Look at the stream, or at each of several, under its name."""
        settings = self._settings
        if not settings.is_multi_stream:
            await self._stream()
            return
        shards: list[Shard] = []
        for one in settings.streams:
            alone = Doctor(settings_of_one(settings, one), self._file)
            alone._factory.service_time = self._factory.service_time
            await alone._run(alone._stream())
            self._found += _under(one.name, alone._found)
            shards += alone._shards or ()
            if None in alone._listed:
                self._listed[one.name] = alone._listed[None]
        self._shards = tuple(shards)

    async def _stream(self) -> None:
        settings = self._settings
        if kind_of(settings.stream_arn) is StreamKind.DYNAMODB:
            await self._table_stream()
            return
        async with self._reached("kinesis", settings.stream_arn) as service:
            action = "kinesis:DescribeStreamSummary"
            answer = await self._call(service, "stream", action, self._stream_params(), NO_STREAM)
            summary = answer["StreamDescriptionSummary"]
            by_fan_out = settings.reader.by_fan_out
            self._found += findings.stream_findings(summary, by_fan_out=by_fan_out)
            await self._run(self._reads(service))
            if by_fan_out:
                self._found.append(await self._consumer(service, summary))

    async def _table_stream(self) -> None:
        """Look at the stream of a DynamoDB table, as the daemon reads it."""
        async with self._reached("dynamodbstreams"):
            pass
        operation = "DescribeStream"
        try:
            async with streams_of(self._settings) as streams:
                summary = await streams.describe()
                self._shards = tuple((await all_shards(streams)).values())
                self._listed[None] = Listed(self._shards, summary.status)
                if self._shards:
                    operation = "GetShardIterator"
                    start = StartingPoint(IteratorType.TRIM_HORIZON)
                    iterator = await streams.shard_iterator(self._shards[-1].shard_id, start)
                    operation = "GetRecords"
                    await streams.get_records(iterator, 1)
        except StreamError as error:
            raise ProbeEnded(refusal("stream", f"dynamodb:{operation}", _cause(error), NO_TABLE_STREAM)) from error
        self._found.append(ok("stream", f"{summary.status}, {len(self._shards)} shards"))
        allowed = "DescribeStream, GetShardIterator and GetRecords are allowed"
        words = allowed if self._shards else "DescribeStream is allowed; there is no shard yet"
        self._found.append(ok("reading", words))

    def _stream_params(self) -> dict[str, Any]:
        arn = self._settings.stream_arn
        return {"StreamName": self._settings.stream_name, **({} if arn is None else {"StreamARN": arn})}

    async def _reads(self, service: BotoService) -> None:
        about = "reading"
        try:
            async with streams_of(self._settings) as streams:
                self._shards = tuple((await all_shards(streams)).values())
        except StreamError as error:
            raise ProbeEnded(refusal(about, "kinesis:ListShards", _cause(error))) from error
        self._listed[None] = Listed(self._shards)
        shard = next((shard for shard in self._shards if shard.is_open), None)
        if shard is None:
            raise ProbeEnded(warn(about, "the stream has no open shard", NO_STREAM))
        params = {**self._stream_params(), "ShardId": shard.shard_id, "ShardIteratorType": "TRIM_HORIZON"}
        answer = await self._call(service, about, "kinesis:GetShardIterator", params)
        one_record = {"ShardIterator": answer["ShardIterator"], "Limit": 1}
        try:
            await self._call(service, about, "kinesis:GetRecords", one_record)
        except ProbeEnded as ended:
            if not self._settings.reader.by_fan_out:
                raise
            # Subscriptions need none of it; only what is missing is looked for by it.
            found: Diagnosis = ended.args[0]
            raise ProbeEnded(
                warn(about, f"{found.words}; losses to retention cannot be proved", found.remedy)
            ) from ended
        words = f"ListShards, GetShardIterator and GetRecords are allowed ({shard.shard_id} was read)"
        if self._settings.reader.by_fan_out:
            words += "; SubscribeToShard was not tried"
        self._found.append(ok(about, words))

    async def _consumer(self, service: BotoService, summary: Mapping[str, Any]) -> Diagnosis:
        fanout = self._settings.fanout
        name = fanout.consumer_arn or fanout.consumer_name
        params = {"StreamARN": summary["StreamARN"], "ConsumerName": name}
        if fanout.consumer_arn is not None:
            params = {"ConsumerARN": fanout.consumer_arn}
        failed: MldError | None = None
        try:
            await service.call("DescribeStreamConsumer", params, timeout_s=TIMEOUT_S)
        except MldError as error:
            failed = error
        return findings.consumer_finding(name, summary.get("ConsumerCount"), failed)

    # --- DynamoDB -----------------------------------------------------------------------------------------------------

    async def _dynamo(self) -> None:
        async with self._reached("dynamodb") as service:
            await self._run(self._table(service), self._legacy_tables(service))

    async def _table(self, service: BotoService) -> None:
        settings = self._settings
        name = settings.lease_table.name
        try:
            answer = await service.call("DescribeTable", {"TableName": name}, timeout_s=TIMEOUT_S)
        except MldError as error:
            if not findings.is_missing(error):
                raise ProbeEnded(refusal("lease table", "dynamodb:DescribeTable", error)) from error
            reports = await self._reports(service)
            now_s = self._factory.service_time.now()
            raise ProbeEnded(findings.missing_table(name, reports, now_s, view_rules(settings))) from error
        index, table = INDEX_NAME if await self._is_3x() else None, answer["Table"]
        duration_s, shards = settings.leases.duration_s, self._open_shards()
        self._require(
            *findings.table_findings(table, key=KEY, index=index, open_shards=shards, lease_duration_s=duration_s)
        )
        has_index = any(one.get("IndexName") == INDEX_NAME for one in table.get("GlobalSecondaryIndexes", ()))
        await self._row_permissions(service, with_index=has_index)
        created = table.get("CreationDateTime")
        await self._rows(created.timestamp() if isinstance(created, datetime) else None)

    async def _is_3x(self) -> bool:
        """Return whether this worker would work by the rules of 3.x: by its settings, else by the table."""
        configured = self._settings.fleet.client_version
        if configured is not None:
            return configured is ClientVersionConfig.VERSION_3X
        try:
            async with fleet_reader(self._settings) as reader:
                return await reader.is_3x()
        except TableError:
            return True

    async def _reports(self, service: BotoService) -> tuple[WorkerReport, ...]:
        """Return those in the table where fleets up to KCL 3.4 keep them: a missing lease table takes its own along."""
        place = Place(self._settings.worker_metrics_table.name, REPORTS_TABLE_KEY)
        try:
            return (await ReportsTable(service, place, request_timeout_s=TIMEOUT_S).scan()).reports
        except TableError:
            return ()

    async def _legacy_tables(self, service: BotoService) -> None:
        """Look for the tables in which fleets up to KCL 3.4 kept reports and the leader's lock, as each start does."""
        about, settings = "fleet tables", self._settings
        there, found = [], []
        for name in (settings.worker_metrics_table.name, settings.coordinator_state_table.name):
            try:
                await service.call("Scan", {"TableName": name, "Limit": 1}, timeout_s=TIMEOUT_S)
                there.append(name)
            except MldError as error:
                if not findings.is_missing(error):
                    found.append(refusal(about, f"dynamodb:Scan of {name}", error))
        self._found += found or [ok(about, f"{' and '.join(there)} are used" if there else "none of an older fleet")]

    async def _row_permissions(self, service: BotoService, *, with_index: bool) -> None:
        """Try each call on rows; the writes are for a row that does not exist, and must not."""
        about, name = "table permissions", self._settings.lease_table.name
        key = {KEY: {"S": f"mld-doctor-{uuid.uuid4()}"}}
        never = {"TableName": name, "ConditionExpression": f"attribute_exists({KEY})"}
        calls: dict[str, dict[str, Any]] = {
            "Scan": {"TableName": name, "Limit": 1},
            "GetItem": {"TableName": name, "Key": key},
            "BatchGetItem": {"RequestItems": {name: {"Keys": [key]}}},
            "PutItem": {**never, "Item": key},
            "UpdateItem": {**never, "Key": key, "UpdateExpression": "REMOVE mldDoctor"},
            "DeleteItem": {**never, "Key": key},
        }
        if with_index:
            query = {
                "KeyConditionExpression": "leaseOwner = :me",
                "ExpressionAttributeValues": {":me": {"S": "mld-doctor"}},
            }
            calls["Query"] = {"TableName": name, "IndexName": INDEX_NAME, "Limit": 1, **query}
        found: list[Diagnosis] = []
        for operation, params in calls.items():
            try:
                await self._call(service, about, f"dynamodb:{operation}", params)
            except ProbeEnded as ended:
                found += ended.args
        self._require(*(found or [ok(about, f"{', '.join(calls)} are allowed")]))

    async def _rows(self, created_s: float | None) -> None:
        try:
            async with fleet_reader(self._settings) as reader:
                status = await reader.look()
        except TableError as error:
            raise ProbeEnded(fail("lease rows", str(error), "see the message")) from error
        is_multi = self._settings.is_multi_stream
        leases = [shard.lease for shard in status.shards]
        other = next((one for one in leases if (one.stream is not None) is not is_multi), None)
        if other is not None:
            form = "several streams" if other.stream is not None else "one stream"
            words = f"the table has the form of {form} (lease {other.key}), and the file has the other one"
            raise ProbeEnded(fail("lease rows", words, f"choose between streamName and mld.streams, or {OTHER_FORM}"))
        file = "" if self._file == os.environ.get(FILE_VARIABLE) else self._file
        self._found += findings.rows_findings(
            FleetSight(fleet=status, listed=self._listed, table_created_s=created_s, file=file),
            is_3x=await self._is_3x(),
        )

    def _open_shards(self) -> int | None:
        return None if self._shards is None else sum(shard.is_open for shard in self._shards)

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def _cloudwatch(self) -> None:
        """Look at CloudWatch. Metrics are not needed to consume: what fails here is a warning."""
        metrics = self._settings.metrics
        if metrics.level is MetricsLevel.NONE or MetricsOutput.CLOUDWATCH not in metrics.outputs:
            return
        try:
            async with self._reached("cloudwatch"):
                pass
        except ProbeEnded as ended:
            found: tuple[Diagnosis, ...] = ended.args
            raise ProbeEnded(*(_warned(one) for one in found)) from ended

    async def _programs(self) -> None:
        """Look at the record processor, and at those of single streams."""
        commands = {"executableName": self._settings.child.command}
        for one in self._settings.streams:
            if one.executable_name is not None:
                commands[f"{one.name}: executableName"] = one.executable_name
        await self._run(*(self._program(about, split_command(text)) for about, text in commands.items()))

    async def _program(self, about: str, words: list[str]) -> None:
        faults = [fail(about, message, remedy) for _, message, remedy in faults_of(words)]
        self._require(*faults)
        program = find_executable(words)
        self._found.append(ok(about, f"{program} can be run; `mld conformance -- COMMAND` tries the protocol"))
        if any(PurePath(word).name == PROGRAM for word in words):
            self._found.append(await self._spark(runnable(words)))

    async def _spark(self, words: list[str]) -> Diagnosis:
        command = [*words[: [PurePath(word).name for word in words].index(PROGRAM) + 1], "--check", self._file]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(SPARK_CHECK_TIMEOUT_S):
                out, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return fail("Spark", f"no answer of mld-spark --check within {SPARK_CHECK_TIMEOUT_S:g} s", "run it by hand")
        lines = (out if process.returncode == 0 else errors).decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit code {process.returncode}"
        if process.returncode == 0:
            return ok("Spark", last)
        return fail("Spark", last, "see docs/use/spark.md")

    def _dead_letter(self) -> list[Diagnosis]:
        """Name a dead letter that is not on this machine: its directory is one of the disks."""
        place = self._settings.child.dead_letter
        if place is None or place.kind is DeadLetterKind.DIRECTORY:
            return []
        return [ok("dead letter", f"{place.text} (a {place.kind.value}; writing there was not tried)")]

    def _disks(self) -> list[Diagnosis]:
        return [findings.disk_finding(place, room_of(place)) for place in self._places]

    def _daemons_here(self) -> Iterator[Diagnosis]:
        """Ask the daemons of the application that run here, as this user, what they have against their files."""
        serving = self._settings.serving
        wanted = WantedDaemon(self._settings.application_name, serving.control_socket, None, None, TIMEOUT_S)
        try:
            links = find_daemons(wanted, os.environ)
        except MldError:
            return  # nothing runs here, or not for this user
        for link in links:
            try:
                yield from findings.daemon_findings(link.ask("status"))
            except MldError as error:
                yield warn("daemon", str(error), "`mld status --live` says whether it makes progress")

    def _files(self) -> Diagnosis:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files_max = None if soft == resource.RLIM_INFINITY else soft
        return findings.files_finding(self._open_shards() or 0, self._settings.child.children_per_shard, files_max)


def _warned(one: Diagnosis) -> Diagnosis:
    return replace(one, health=Health.WARN) if one.health is Health.FAIL else one


def _under(name: str, found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return what was found of one of several streams."""
    return [replace(one, about=f"{name}: {one.about}") for one in found]


def _client(factory: ClientFactory, name: str) -> Any:
    return factory.create_client(
        name, read_timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S / 2, pool_connections_max=1
    )


def _cause(error: StreamError) -> MldError:
    return error.__cause__ if isinstance(error.__cause__, AwsError) else error


# --- the network ------------------------------------------------------------------------------------------------------


def endpoints_of(client: Any, stream_arn: str | None = None) -> list[str]:
    """Return where the calls of a client go; with a stream's ARN, first those that look, then those that read.

    botocore resolves that ARN into hosts of the stream's account, and tables into one of the credentials' account.
    """
    calls: dict[str, dict[str, str]] = {}
    if stream_arn is not None:
        reading = {"StreamARN": stream_arn, "ShardIterator": "none"}
        calls = {"describe_stream_summary": {"StreamARN": stream_arn}, "get_records": reading}
    elif client.meta.service_model.service_name == "dynamodb":
        calls = {"describe_table": {"TableName": "none"}}
    addresses = [client.generate_presigned_url(name, params).partition("?")[0] for name, params in calls.items()]
    return list(dict.fromkeys(addresses)) or [client.meta.endpoint_url]


async def endpoint_finding(about: str, url: str, proxy: str | None, ca_bundle: str | None) -> Diagnosis:
    """Look what is at `url`, or at the proxy (``host:port``) that leads there."""
    address = urlsplit(url)
    host, port = str(address.hostname), address.port or _PORTS.get(address.scheme, 443)
    shown = f"{host}:{port}"
    if proxy is not None:
        host, _, number = proxy.rpartition(":")
        host, port = host.strip("[]"), int(number)
    through = "" if proxy is None else f" through the proxy {proxy}"
    name = "the proxy" if proxy is not None else "the endpoint"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().getaddrinfo(host, port)
    except (OSError, TimeoutError, UnicodeError) as error:
        remedy = "check the region and endpoint in the file, and the name server of this machine"
        return fail(about, f"{host}, the name of {name}, is not found: {_why(error)}", remedy)
    context = ssl.create_default_context(cafile=ca_bundle) if address.scheme == "https" and proxy is None else None
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        remedy = "a proxy may stand between: give its certificate by AWS_CA_BUNDLE; and check the clock"
        return fail(about, f"no trusted TLS with {shown}: {_why(error)}", remedy)
    except (OSError, TimeoutError) as error:
        remedy = "check port, firewall, security group and VPC endpoint, or set a proxy"
        return fail(about, f"no connection to {host}:{port}: {_why(error)}", remedy)
    version = None if context is None else writer.get_extra_info("ssl_object").version()
    writer.close()
    return ok(about, f"{shown} answers{through}{'' if version is None else f', {version}'}")


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
