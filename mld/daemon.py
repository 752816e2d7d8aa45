"""The process around a worker: real adapters from settings, exit codes. What signals mean is in `process_signals`.

Exit codes (protocol#exit-codes): 0 after a graceful stop; 128 + signal when the grace was over or a second signal
came; 1 for failures, failed initialization included; 2 for configuration errors, which `cli` reports.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from random import Random

from mld.aws.client_factory import ClientFactory, client_factory
from mld.aws.counted import CountedService
from mld.aws.kinesis import KinesisStreams
from mld.aws.letters import LetterBox, letter_box_of
from mld.aws.service import RawService, Service
from mld.aws.wire_or_boto import service_of
from mld.clock import Clock, LoopClock
from mld.consumer.child import PipeHost, find_executable, runnable
from mld.consumer.letters import Sender
from mld.consumer.naming import StreamNaming
from mld.consumer.ports import ConsumerParts, ConsumerSettings, ProcessorHost, ShardSource, Signal
from mld.consumer.restarts import RestartPolicy
from mld.consumer.shard_counters import status_of
from mld.errors import MldError
from mld.fleet.wiring import DetectLoad, FleetNeeds, load_of_this_host, make_fleet, no_load
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.keeper import LeaseKeeper
from mld.leases.lease import RENEWALS_PER_LEASE, ShardStatus
from mld.leases.retries import renewal_timeout_s
from mld.leases.table import LeaseTable
from mld.leases.take_plan import TakingRules
from mld.leases.taker import LeaseTaker
from mld.leases.validity import HeartbeatValidity, Validity
from mld.metrics.registry import Metrics
from mld.positions import AT_TIMESTAMP, LATEST, TRIM_HORIZON, InitialPosition
from mld.process.reload import Reloader
from mld.process.signals import EXIT_FAILURE, hang_up_here, run_under_signals, warn_without_init
from mld.process.systemd import ServiceManager, claim_supervision
from mld.process.until_tip import CatchUpRules, RunUntilTip, UntilTip
from mld.reader_factory import fan_out_of, readers_of
from mld.retrieval.rawpage import page_of
from mld.shards.detector import ShardDetector
from mld.streams import FanOut, Streams
from mld.surface import SurfaceParts, surface
from mld.tracking.one_stream import OneStream
from mld.tracking.tracked_stream import TrackingNeeds, track
from mld.views.choice import missing_extras
from mld.worker import Worker, WorkerParts, WorkerSettings, WorkerSignals
from properties.remarks import ConfigurationError, Level, Remark
from properties.settings import Settings
from properties.spark import PREFIX, PROGRAM
from properties.values import ChildFailurePolicy, ChildLog, HeartbeatSetting, InitialPositionKind, WireClient
from protocol.command import split_command
from protocol.messages import Dialect

log = logging.getLogger(__name__)

EPSILON_S = 0.025  # Java's epsilonMillis
KINESIS_THREADS_MAX = 24  # for what is large or new, and all calls through botocore
KINESIS_CALLS_MAX = 64  # in flight, not shards: a thousand shards that are polled every 1.5 s, 100 ms away
DYNAMO_READ_TIMEOUT_MIN_S = 1.0
KINESIS_READ_TIMEOUT_S = 30.0  # Java's kinesisRequestTimeout
CONNECT_TIMEOUT_S = 3.0
SWITCH_INTERVAL_S = 0.002  # a thread that reads a large body gives way this often; 0.5 ms costs an eighth more per GB
COLLECT_EVERY = 50_000  # objects: a page of 10,000 records must not start a dozen collections


async def run_daemon(
    settings: Settings,
    properties_file: str,
    overrides: Sequence[str] = (),
    reloader: Reloader | None = None,
    until_tip: UntilTip | None = None,
) -> int:
    """Run until stopped; returns the exit code. `properties_file` is an absolute path; children are told of
    those `overrides` (``key=value`` of the command line) that are for the Spark processor. `reloader` reads the file
    again when asked to; None: nothing can change. With `until_tip` the run ends by itself.

    Raises ConfigurationError if the record processor, or a package that the file asks for, cannot be found.
    """
    supervision = claim_supervision(os.environ, os.getpid())
    command = split_command(settings.executable_name)
    _check_command(command, settings.executable_name, properties_file)
    _check_extras(settings, properties_file)
    command = runnable(command)
    worker_id = settings.worker_id or str(uuid.uuid4())
    factory = client_factory(settings)
    metrics = Metrics()
    kinesis, dynamo = _services(settings, factory, metrics)
    letters = letter_box_of(settings, factory)
    opened: list[CountedService | LetterBox] = [kinesis, dynamo, *([] if letters is None else [letters])]
    log.info(
        "starting",
        extra={
            "action": "daemon_starting",
            "application": settings.application_name,
            "stream": settings.stream_name,
            "table": settings.table_name,
            "worker": worker_id,
            "command": command[0],
        },
    )
    warn_without_init()
    environment = {
        "MLD_STREAM_NAME": settings.stream_name,
        "MLD_APPLICATION_NAME": settings.application_name,
        "MLD_WORKER_ID": worker_id,
        "MLD_PROPERTIES_FILE": properties_file,
        "MLD_OVERRIDES": "\n".join(text for text in overrides if text.startswith(PREFIX)),
        "MLD_DAEMON_PID": str(os.getpid()),
    }
    try:
        await asyncio.gather(*(one.open() for one in opened))
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.set_threshold(COLLECT_EVERY)
        gc.freeze()  # modules and service models stay: else every full collection walks them, 30 ms each time
        worker = build_worker(settings, command, worker_id, kinesis, dynamo, environment, letters, metrics)
        parts = SurfaceParts(settings, worker, worker_id, metrics, dynamo, factory, LoopClock(), supervision)

        def reload() -> None:
            _reload(worker, reloader, supervision.manager)

        hang_up = hang_up_here(is_supervised=supervision.manager.is_there)
        grace_s = settings.shutdown_grace_millis / 1000
        if until_tip is not None:
            rules = CatchUpRules(
                settings.failover_time_millis / 1000, initial_position(settings), until_tip.time_max_s, properties_file
            )
            run = RunUntilTip(worker, metrics, worker_id, parts.clock, rules, around=lambda: surface(parts))
            return await run_under_signals(run, grace_s, hang_up, reload)
        async with surface(parts):
            return await run_under_signals(worker, grace_s, hang_up, reload)
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
    finally:
        await asyncio.gather(*(one.close() for one in opened))


def _reload(worker: Worker, reloader: Reloader | None, manager: ServiceManager) -> None:
    """Read the properties file again, and let the worker go on with what it says."""
    if not worker.is_ready:  # it starts with the file as it is, or it ends anyway
        log.warning("not reloaded: the worker is starting or stopping", extra={"action": "reload_failed"})
        return
    manager.reloading(LoopClock().monotonic())
    try:
        settings = None if reloader is None else reloader.reload()
        if settings is not None:
            worker.adjust(worker_settings(settings).consumer)
    finally:
        manager.ready()


def _check_extras(settings: Settings, properties_file: str) -> None:
    remarks = missing_extras(settings, properties_file)
    errors = [remark for remark in remarks if remark.level is Level.ERROR]
    if errors:
        raise ConfigurationError(errors, remarks)
    for remark in remarks:
        log.warning("%s", remark, extra={"action": "configuration", "key": remark.key})


def _check_command(command: list[str], text: str, properties_file: str) -> None:
    if find_executable(command) is None:
        problem = Remark(
            Level.ERROR,
            "executableName",
            properties_file,
            f"no executable file {command[0] if command else text!r} is found",
            "give a path relative to the working directory, an absolute one, or a name on PATH, and make it executable",
        )
        raise ConfigurationError([problem])


def _services(settings: Settings, factory: ClientFactory, metrics: Metrics) -> tuple[CountedService, CountedService]:
    request_timeout_s = _request_timeout_s(settings)
    lean = settings.wire_client is WireClient.LEAN
    kinesis = service_of(
        factory,
        "kinesis",
        label="Kinesis",
        lean=lean,
        threads_max=KINESIS_THREADS_MAX,
        calls_max=KINESIS_CALLS_MAX,
        read_timeout_s=KINESIS_READ_TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
    )
    dynamo = service_of(
        factory,
        "dynamodb",
        label="DynamoDB",
        lean=lean,
        threads_max=settings.max_lease_renewal_threads,
        calls_max=settings.max_lease_renewal_threads,
        read_timeout_s=request_timeout_s,
        connect_timeout_s=min(CONNECT_TIMEOUT_S, request_timeout_s),
    )
    return CountedService(kinesis, "kinesis", metrics.worker), CountedService(dynamo, "dynamodb", metrics.worker)


def _request_timeout_s(settings: Settings) -> float:
    """Well below the lease duration, so that a slow reply cannot outlive the lease (leases#table-reads)."""
    return max(DYNAMO_READ_TIMEOUT_MIN_S, settings.failover_time_millis / 1000 / RENEWALS_PER_LEASE)


def build_worker(
    settings: Settings,
    command: list[str],
    worker_id: str,
    kinesis: RawService,
    dynamo: Service,
    environment: Mapping[str, str],
    letters: LetterBox | None = None,
    metrics: Metrics | None = None,
) -> Worker:
    """Wire the real adapters together."""
    clock = LoopClock()
    rng = Random()
    streams = KinesisStreams(
        kinesis,
        stream_name=settings.stream_name,
        stream_arn=settings.stream_arn,
        page_of=page_of,
    )
    table = DynamoLeaseTable(
        dynamo,
        clock,
        table_name=settings.table_name,
        billing_mode=settings.lease_table_billing_mode.value,
        read_capacity=settings.initial_lease_table_read_capacity,
        write_capacity=settings.initial_lease_table_write_capacity,
        tags=dict(settings.lease_table_tags),
        deletion_protection=settings.lease_table_deletion_protection_enabled,
        point_in_time_recovery=settings.lease_table_pitr_enabled,
        scan_segments=settings.lease_table_scan_total_segments,
        request_timeout_s=_request_timeout_s(settings),
        renewal_timeout_s=renewal_timeout_s(settings.failover_time_millis / 1000),
    )
    host = PipeHost(
        command,
        clock,
        stop_timeout_s=settings.child_stop_timeout_millis / 1000,
        environment=environment,
        logs_fields=settings.child_log is ChildLog.FIELDS,
        naming=StreamNaming(streams, clock) if any(PurePath(word).name == PROGRAM for word in command) else None,
    )
    return assemble(
        settings,
        worker_id,
        streams,
        table,
        dynamo,
        host,
        clock,
        rng,
        detect_load=load_of_this_host(clock),
        polls_on_a_beat=True,
        fan_out=fan_out_of(settings, kinesis, streams),
        letters=letters,
        metrics=metrics,
    )


def assemble(
    settings: Settings,
    worker_id: str,
    streams: Streams,
    table: LeaseTable,
    dynamo: Service,
    host: ProcessorHost,
    clock: Clock,
    rng: Random,
    *,
    detect_load: DetectLoad = no_load,
    polls_on_a_beat: bool = False,
    fan_out: FanOut | None = None,
    letters: LetterBox | None = None,
    metrics: Metrics | None = None,
) -> Worker:
    """A worker over any implementations of the ports. `dynamo` is the service behind `table`.

    `polls_on_a_beat`: readers at the tip wake together (`retrieval.pacing`), which only pays on a real machine.
    With `fan_out` records are read by subscriptions. `letters` must be there if the settings set records aside.
    """
    lease_duration_s = settings.failover_time_millis / 1000
    initial = initial_position(settings)
    signals = WorkerSignals()
    metrics = Metrics() if metrics is None else metrics

    def status_of_shard(key: str) -> ShardStatus | None:
        return status_of(metrics.shards.get(key), clock.wall())

    by_heartbeat = (
        HeartbeatValidity(clock, rng, lease_duration_s) if settings.heartbeat is HeartbeatSetting.WORKER else None
    )
    keeper = LeaseKeeper(
        table,
        clock,
        rng,
        validity=by_heartbeat or Validity(lease_duration_s),
        worker_id=worker_id,
        renew_interval_s=lease_duration_s / RENEWALS_PER_LEASE - EPSILON_S,
        renewals_concurrent_max=settings.max_lease_renewal_threads,
        new_token=lambda: str(uuid.uuid4()),
        on_change=signals.changed.set,
        handoff_timeout_s=settings.graceful_lease_handoff_timeout_millis / 1000,
        status_of=status_of_shard,
        metrics=metrics,
    )
    taker = LeaseTaker(table, keeper, clock, rng, worker_id=worker_id, rules=taking_rules(settings), metrics=metrics)
    needs = FleetNeeds(
        worker_id=worker_id,
        service=dynamo,
        table=table,
        keeper=keeper,
        heartbeat_validity=by_heartbeat,
        taker=taker,
        clock=clock,
        rng=_apart(rng),
        detect_load=detect_load,
        status_of=status_of_shard,
        metrics=metrics,
    )
    fleet = make_fleet(settings, needs)
    parents_changed = Signal()

    def new_detector(streams: Streams) -> ShardDetector:
        return ShardDetector(
            streams,
            clock,
            rng,
            backoff_s=settings.list_shards_backoff_time_in_millis / 1000,
            attempts_max=settings.max_list_shards_retry_attempts,
        )

    tracking = TrackingNeeds(
        fleet=fleet,
        clock=clock,
        new_detector=new_detector,
        ignore_unexpected_children=settings.ignore_unexpected_child_shards,
        cleans_up=settings.cleanup_leases_upon_shard_completion,
        metrics=metrics,
        parents_changed=parents_changed,
    )
    new_reader, take_down = readers_of(settings, streams, fan_out, clock, rng, on_a_beat=polls_on_a_beat)
    tracked = track(
        tracking,
        table,
        streams,
        ShardSource(new_reader, initial, Sender(settings.application_name, settings.stream_name, worker_id)),
        name=settings.stream_name,
        stream=None,
        initial=initial,
        on_missing_child=signals.missing_child,
        take_down=take_down,
    )
    sources = OneStream(
        tracked,
        table,
        clock,
        sync_due=signals.sync_due,
        sync_spacing_s=settings.shard_sync_interval_millis / 1000,
        skip_sync=settings.skip_shard_sync_at_worker_initialization_if_leases_exist,
        on_synced=fleet.wake_leases,
    )
    consumer_parts = ConsumerParts(
        keeper=keeper,
        host=host,
        source_of=sources.source_of,
        care=sources.care,
        parents_changed=parents_changed,
        clock=clock,
        rng=rng,
        on_gave_up=signals.gave_up,
        letters=letters,
        metrics=metrics,
    )
    parts = WorkerParts(
        table=table,
        keeper=keeper,
        fleet=fleet,
        sources=sources,
        consumer_parts=consumer_parts,
        clock=clock,
        takes_down=take_down is not None,
    )
    return Worker(parts, worker_settings(settings), signals)


def _apart(rng: Random) -> Random:
    """A generator of its own for the fleet, fixed by the state of `rng`: neither's draws shift the other's."""
    twin = Random()
    twin.setstate(rng.getstate())
    return Random(twin.getrandbits(64))


def taking_rules(settings: Settings) -> TakingRules:
    """The rules of the taker: Java's, and even shares beyond them."""
    return TakingRules(
        lease_duration_s=settings.failover_time_millis / 1000,
        leases_max=settings.max_leases_for_worker,
        steals_max=settings.max_leases_to_steal_at_one_time,
        very_old_first=settings.enable_priority_lease_assignment,
        even_shares=True,
    )


def initial_position(settings: Settings) -> InitialPosition:
    """The settings' value as the core's."""
    configured = settings.initial_position
    match configured.kind:
        case InitialPositionKind.LATEST:
            return InitialPosition(LATEST)
        case InitialPositionKind.TRIM_HORIZON:
            return InitialPosition(TRIM_HORIZON)
        case InitialPositionKind.AT_TIMESTAMP:
            return InitialPosition(AT_TIMESTAMP, configured.timestamp_s)


def _failures_max(settings: Settings) -> int | None:
    match settings.child_failure_policy:
        case ChildFailurePolicy.PARK:
            return None
        case ChildFailurePolicy.RESTART:
            return settings.child_restarts_max
        case ChildFailurePolicy.EXIT:
            return 0


def worker_settings(settings: Settings) -> WorkerSettings:
    """Milliseconds of the file to seconds of the core, policy to numbers."""
    timeout = settings.timeout_in_seconds
    consumer = ConsumerSettings(
        dialect=Dialect(settings.protocol_version),
        restarts=RestartPolicy(
            failures_max=_failures_max(settings),
            backoff_s=settings.child_restart_backoff_millis / 1000,
            backoff_max_s=settings.child_restart_backoff_max_millis / 1000,
        ),
        poison_attempts=settings.poison_attempts or 0,
        reply_timeout_s=None if timeout is None else float(timeout),
        parent_poll_s=settings.parent_shard_poll_interval_millis / 1000,
        task_backoff_s=settings.task_backoff_time_millis / 1000,
        deliver_empty_batches=settings.call_process_records_even_for_empty_record_list,
        warn_after_s=settings.log_warning_for_task_after_millis / 1000,
        logs_fields=settings.child_log is ChildLog.FIELDS,
    )
    return WorkerSettings(
        consumer=consumer,
        initialization_backoff_s=settings.scheduler_initialization_backoff_time_millis / 1000,
        ensure_table=settings.lease_table_pitr_enabled,
    )
