"""`mld doctor`: looks at everything that a daemon needs, in the order in which it needs it, and says what is wrong.

It changes nothing: reads are real and small, and writes have a condition that no row can meet, so that DynamoDB refuses
them after it has looked at the permission. What cannot be tried without an effect is named as not tried. Nothing that
depends on a failed step is tried after it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from mld.aws.client import BotoService
from mld.aws.client_factory import ClientFactory, ServiceName, client_factory
from mld.aws.wire.botocore_side import proxies_of
from mld.check.refusals import faults_of
from mld.consumer.child import find_executable, runnable
from mld.core.errors import AwsError, MldError, StartupError, StreamError, TableError
from mld.core.streams import Shard, StreamKind
from mld.fleet.report.reports_table import ReportsTable
from mld.fleet.values import REPORTS_TABLE_KEY, Place, WorkerReport
from mld.leases.owner_index import INDEX_NAME
from mld.leases.rows import KEY
from mld.operating import findings
from mld.operating.findings import Diagnosis, fail, ok, refusal, warn
from mld.operating.fleet_reader import fleet_reader, view_rules
from mld.operating.network_probe import endpoint_findings, endpoints_of
from mld.operating.stream_access import streams_of
from mld.operating.stream_choice import settings_of_one
from mld.operating.table_stream import examine_table_stream
from mld.properties.redaction import Scrubber
from mld.properties.settings import Settings
from mld.properties.spark import PROGRAM
from mld.properties.values import ClientVersionConfig, DeadLetterKind, MetricsLevel, MetricsOutput
from mld.protocol.command import split_command
from mld.retrieval.stream_adapters import kind_of
from mld.tracking.stream_rows import within_stream

TIMEOUT_S = 10.0
SPARK_CHECK_TIMEOUT_S = 120.0
NO_STREAM = "check streamName or streamArn, regionName and the account of the credentials"
LABELS: dict[ServiceName, str] = {
    "kinesis": "Kinesis",
    "dynamodbstreams": "DynamoDB Streams",
    "dynamodb": "DynamoDB",
    "cloudwatch": "CloudWatch",
}


class Doctor:
    """One examination. `wall` is this machine's clock in epoch seconds."""

    def __init__(self, settings: Settings, properties_file: str, wall: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._file = properties_file
        self._wall = wall
        self._factory = client_factory(settings)
        self._offset_s: float | None = None
        self._summary: Mapping[str, Any] | None = None
        self._shards: tuple[Shard, ...] | None = None
        self._shards_of: dict[str, tuple[Shard, ...]] = {}  # of each of several streams that could be listed
        self._scrub = Scrubber()

    async def examine(self) -> list[Diagnosis]:
        """Everything that was found, in the order of the examination."""
        found = [*await self._streams(), *await self._dynamo(), *await self._cloudwatch()]
        clock = findings.clock_finding(self._clock_offset_s())
        if clock is not None:
            found.append(clock)
        found += [*await self._programs(), *self._dead_letter(), *self._machine()]
        return [Diagnosis(one.health, one.about, self._scrub(one.words), self._scrub(one.remedy)) for one in found]

    # --- services -----------------------------------------------------------------------------------------------------

    async def _reach(
        self, name: ServiceName, stream_arn: str | None = None
    ) -> tuple[list[Diagnosis], BotoService | None]:
        """(credentials and endpoints, the service if all are there); an ARN of a stream leads to hosts of its own."""
        label = LABELS[name]
        service = BotoService(lambda: _client(self._factory, name), threads_max=1, name=label)
        try:
            await service.open()
            urls = await service.with_client(partial(endpoints_of, stream_arn=stream_arn))
            proxies, region = await service.with_client(lambda client: (proxies_of(client), client.meta.region_name))
        except StartupError as error:
            await service.close()
            return [fail(f"{label} credentials", str(error), "see docs/use/configuration.md, credentials")], None
        except MldError as error:
            await service.close()
            return [fail(label, str(error), "see the message")], None
        found = [self._credentials(name, label)]
        bundle = await asyncio.to_thread(self._factory.ca_bundle_of, name)
        for url in urls:
            proxy = proxies(url)
            for one in await endpoint_findings(f"{label} endpoint", url, None if proxy is None else str(proxy), bundle):
                found.append(Diagnosis(one.health, one.about, f"{region}: {one.words}", one.remedy))
        if not findings.is_well(found):
            await service.close()
            return found, None
        return found, service

    def _credentials(self, name: ServiceName, label: str) -> Diagnosis:
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

    async def _try(
        self, service: BotoService, about: str, name: str, operation: str, params: dict[str, Any], missing: str = ""
    ) -> tuple[dict[str, Any] | None, Diagnosis | None]:
        """(the answer, None), or (None, what its failure means)."""
        try:
            answer = await service.call(operation, params, timeout_s=TIMEOUT_S)
        except MldError as error:
            if findings.is_harmless_refusal(error):
                return {}, None
            return None, refusal(about, findings.permission_of(name, operation), error, missing)
        self._learn_time(answer)
        return answer, None

    def _learn_time(self, answer: Mapping[str, Any]) -> None:
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        if date is not None and self._offset_s is None:
            try:
                self._offset_s = parsedate_to_datetime(date).timestamp() - self._wall()
            except ValueError:
                return

    def _clock_offset_s(self) -> float | None:
        """What a refusal has taught is exact; an answer tells whole seconds."""
        time_of_aws = self._factory.service_time
        return time_of_aws.offset_s if time_of_aws.is_measured else self._offset_s

    # --- streams ------------------------------------------------------------------------------------------------------

    async def _streams(self) -> list[Diagnosis]:
        """What is found of the stream, or of each of several, under its name."""
        settings = self._settings
        if not settings.is_multi_stream:
            return await self._kinesis()
        found: list[Diagnosis] = []
        shards: list[Shard] = []
        for one in settings.streams:
            alone = Doctor(settings_of_one(settings, one), self._file)
            found += [replace(said, about=f"{one.name}: {said.about}") for said in await alone._kinesis()]
            shards += alone._shards or ()
            if alone._shards is not None:
                self._shards_of[one.name] = alone._shards
            self._offset_s = alone._offset_s if self._offset_s is None else self._offset_s
        self._shards = tuple(shards)
        return found

    # --- Kinesis ------------------------------------------------------------------------------------------------------

    async def _kinesis(self) -> list[Diagnosis]:
        if kind_of(self._settings.stream_arn) is StreamKind.DYNAMODB:
            return await self._table_stream()
        found, service = await self._reach("kinesis", self._settings.stream_arn)
        if service is None:
            return found
        try:
            return [*found, *await self._stream(service)]
        finally:
            await service.close()

    async def _table_stream(self) -> list[Diagnosis]:
        found, service = await self._reach("dynamodbstreams")
        if service is None:
            return found
        await service.close()
        said, self._shards = await examine_table_stream(self._settings)
        return [*found, *said]

    async def _stream(self, service: BotoService) -> list[Diagnosis]:
        settings = self._settings
        answer, failed = await self._try(
            service, "stream", "kinesis", "DescribeStreamSummary", self._stream_params(), NO_STREAM
        )
        if answer is None:
            assert failed is not None
            return [failed]
        self._summary = answer["StreamDescriptionSummary"]
        found = findings.stream_findings(self._summary, by_fan_out=settings.reads_by_fan_out)
        found += await self._reads(service)
        if settings.reads_by_fan_out:
            found.append(await self._consumer(service))
        return found

    def _stream_params(self) -> dict[str, Any]:
        arn = self._settings.stream_arn
        return {"StreamName": self._settings.stream_name, **({} if arn is None else {"StreamARN": arn})}

    async def _reads(self, service: BotoService) -> list[Diagnosis]:
        about = "reading"
        try:
            async with streams_of(self._settings) as streams:
                self._shards = await _all_shards(streams)
        except StreamError as error:
            return [refusal(about, "kinesis:ListShards", _cause(error))]
        shard = next((shard for shard in self._shards if shard.is_open), None)
        if shard is None:
            return [warn(about, "the stream has no open shard", NO_STREAM)]
        params = {**self._stream_params(), "ShardId": shard.shard_id, "ShardIteratorType": "TRIM_HORIZON"}
        answer, failed = await self._try(service, about, "kinesis", "GetShardIterator", params)
        if answer is None:
            assert failed is not None
            return [failed]
        if self._settings.reads_by_fan_out:
            return [ok(about, "ListShards and GetShardIterator are allowed; SubscribeToShard was not tried")]
        _, failed = await self._try(
            service, about, "kinesis", "GetRecords", {"ShardIterator": answer["ShardIterator"], "Limit": 1}
        )
        if failed is not None:
            return [failed]
        return [ok(about, f"ListShards, GetShardIterator and GetRecords are allowed ({shard.shard_id} was read)")]

    async def _consumer(self, service: BotoService) -> Diagnosis:
        settings = self._settings
        assert self._summary is not None
        name = settings.fanout_consumer_arn or settings.fanout_consumer_name
        params = (
            {"ConsumerARN": settings.fanout_consumer_arn}
            if settings.fanout_consumer_arn is not None
            else {"StreamARN": self._summary["StreamARN"], "ConsumerName": name}
        )
        try:
            await service.call("DescribeStreamConsumer", params, timeout_s=TIMEOUT_S)
        except MldError as error:
            return findings.consumer_finding(name, self._summary.get("ConsumerCount"), error)
        return findings.consumer_finding(name, self._summary.get("ConsumerCount"), None)

    # --- DynamoDB -----------------------------------------------------------------------------------------------------

    async def _dynamo(self) -> list[Diagnosis]:
        found, service = await self._reach("dynamodb")
        if service is None:
            return found
        try:
            return [*found, *await self._table(service), *await self._legacy_tables(service)]
        finally:
            await service.close()

    async def _table(self, service: BotoService) -> list[Diagnosis]:
        settings = self._settings
        name = settings.table_name
        try:
            answer = await service.call("DescribeTable", {"TableName": name}, timeout_s=TIMEOUT_S)
        except MldError as error:
            if findings.is_missing(error):
                return [findings.missing_table(name, await self._reports(service), self._wall(), view_rules(settings))]
            return [refusal("lease table", "dynamodb:DescribeTable", error)]
        self._learn_time(answer)
        is_3x = settings.client_version_config is ClientVersionConfig.VERSION_3X
        found = findings.table_findings(
            answer["Table"],
            key=KEY,
            index=INDEX_NAME if is_3x else None,
            open_shards=self._open_shards(),
            lease_duration_s=settings.failover_time_millis / 1000,
        )
        if not findings.is_well(found):
            return found
        has_index = any(one.get("IndexName") == INDEX_NAME for one in answer["Table"].get("GlobalSecondaryIndexes", ()))
        found += await self._row_permissions(service, with_index=has_index)
        return found + await self._rows() if findings.is_well(found) else found

    async def _reports(self, service: BotoService) -> tuple[WorkerReport, ...]:
        """Those in the table where fleets up to KCL 3.4 keep them: a missing lease table takes its own along."""
        place = Place(self._settings.worker_metrics_table_name, REPORTS_TABLE_KEY)
        try:
            return (await ReportsTable(service, place, request_timeout_s=TIMEOUT_S).scan()).reports
        except TableError:
            return ()

    async def _legacy_tables(self, service: BotoService) -> list[Diagnosis]:
        """Each start looks for the tables in which fleets up to KCL 3.4 kept reports and the leader's lock."""
        about, settings = "fleet tables", self._settings
        there, found = [], []
        for name in (settings.worker_metrics_table_name, settings.coordinator_state_table_name):
            try:
                await service.call("Scan", {"TableName": name, "Limit": 1}, timeout_s=TIMEOUT_S)
                there.append(name)
            except MldError as error:
                if not findings.is_missing(error):
                    found.append(refusal(about, f"dynamodb:Scan of {name}", error))
        return found or [ok(about, f"{' and '.join(there)} are used" if there else "none of an older fleet")]

    async def _row_permissions(self, service: BotoService, *, with_index: bool) -> list[Diagnosis]:
        """Each call on rows; the writes are for a row that does not exist, and must not."""
        about, name = "table permissions", self._settings.table_name
        key = {KEY: {"S": f"mld-doctor-{uuid.uuid4()}"}}
        never = {"TableName": name, "ConditionExpression": f"attribute_exists({KEY})"}
        calls: list[tuple[str, dict[str, Any]]] = [
            ("Scan", {"TableName": name, "Limit": 1}),
            ("GetItem", {"TableName": name, "Key": key}),
            ("BatchGetItem", {"RequestItems": {name: {"Keys": [key]}}}),
            ("PutItem", {**never, "Item": key}),
            ("UpdateItem", {**never, "Key": key, "UpdateExpression": "REMOVE mldDoctor"}),
            ("DeleteItem", {**never, "Key": key}),
        ]
        if with_index:
            query = {
                "KeyConditionExpression": "leaseOwner = :me",
                "ExpressionAttributeValues": {":me": {"S": "mld-doctor"}},
            }
            calls.append(("Query", {"TableName": name, "IndexName": INDEX_NAME, "Limit": 1, **query}))
        found = []
        for operation, params in calls:
            _, failed = await self._try(service, about, "dynamodb", operation, params)
            if failed is not None:
                found.append(failed)
        return found or [ok(about, f"{', '.join(operation for operation, _ in calls)} are allowed")]

    async def _rows(self) -> list[Diagnosis]:
        try:
            async with fleet_reader(self._settings) as reader:
                status = await reader.look()
        except TableError as error:
            return [fail("lease rows", str(error), "see the message")]
        is_3x = self._settings.client_version_config is ClientVersionConfig.VERSION_3X
        leases = [shard.lease for shard in status.shards]
        other = next((one for one in leases if (one.stream is not None) is not self._settings.is_multi_stream), None)
        if other is not None:
            form = "several streams" if other.stream is not None else "one stream"
            words = f"the table has the form of {form} (lease {other.key}), and the file has the other one"
            return [fail("lease rows", words, "choose between streamName and mld.streams, or mld migrate-streams")]
        shards = None if self._settings.is_multi_stream else self._shards
        found = findings.rows_findings(status, leases, shards, is_3x=is_3x)
        for name, listed in self._shards_of.items():
            own = [within_stream(one.lease) for one in status.shards if one.label == name]
            if own:
                found += [replace(one, about=f"{name}: {one.about}") for one in findings.against_stream(own, listed)]
        return found

    def _open_shards(self) -> int | None:
        return None if self._shards is None else sum(shard.is_open for shard in self._shards)

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def _cloudwatch(self) -> list[Diagnosis]:
        """Metrics are not needed to consume: what fails here is a warning."""
        settings = self._settings
        if settings.metrics_level is MetricsLevel.NONE or MetricsOutput.CLOUDWATCH not in settings.metrics.outputs:
            return []
        found, service = await self._reach("cloudwatch")
        if service is not None:
            await service.close()
        return [warn(one.about, one.words, one.remedy) if one.health is findings.Health.FAIL else one for one in found]

    async def _programs(self) -> list[Diagnosis]:
        """What is found of the record processor, and of those of single streams."""
        found = await self._program("executableName", self._settings.executable_name)
        for one in self._settings.streams:
            if one.executable_name is not None:
                found += await self._program(f"{one.name}: executableName", one.executable_name)
        return found

    async def _program(self, about: str, text: str) -> list[Diagnosis]:
        words = split_command(text)
        faults = [fail(about, message, remedy) for _, message, remedy in faults_of(words)]
        if faults:
            return faults
        program = find_executable(words)
        found = [ok(about, f"{program} can be run; `mld conformance -- COMMAND` tries the protocol")]
        if any(PurePath(word).name == PROGRAM for word in words):
            found.append(await self._spark(runnable(words)))
        return found

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
        said = (out if process.returncode == 0 else errors).decode(errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {process.returncode}"
        if process.returncode == 0:
            return ok("Spark", last)
        return fail("Spark", last, "see docs/use/spark.md")

    def _dead_letter(self) -> list[Diagnosis]:
        about, letters = "dead letter", self._settings.dead_letter
        if letters is None:
            return []
        if letters.kind is not DeadLetterKind.DIRECTORY:
            return [ok(about, f"{letters.text} (a {letters.kind.value}; writing there was not tried)")]
        path = Path(letters.name).absolute()
        first = next(one for one in (path, *path.parents) if one.exists())
        if not first.is_dir() or not os.access(first, os.W_OK | os.X_OK):
            return [fail(about, f"{first} cannot be written to", "let the daemon's user write there (mld.deadLetter)")]
        return [ok(about, f"{path} can be written to")]

    def _machine(self) -> list[Diagnosis]:
        return findings.machine_findings(
            self._open_shards(),
            files_max=_limit(resource.RLIMIT_NOFILE),
            processes_max=_limit(resource.RLIMIT_NPROC),
            memory_bytes=_free_memory_bytes(),
            prefetch_bytes=self._settings.prefetch_bytes_max,
        )


def _client(factory: ClientFactory, name: ServiceName) -> Any:
    return factory.create_client(
        name, read_timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S / 2, pool_connections_max=1
    )


async def _all_shards(streams: Any) -> tuple[Shard, ...]:
    shards: dict[str, Shard] = {}
    token = None
    while True:
        page = await streams.list_shards(None, token)
        shards |= {shard.shard_id: shard for shard in page.shards}
        token = page.next_token
        if token is None:
            return tuple(shards.values())


def _cause(error: StreamError) -> MldError:
    return error.__cause__ if isinstance(error.__cause__, AwsError) else error


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _free_memory_bytes() -> int | None:
    """What the control group leaves, or the machine; None where neither tells."""
    free = _meminfo_available()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        left = max(0, limit - used)
        free = left if free is None else min(free, left)
    return free


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
