"""The process around a worker: real adapters from settings, exit codes. What signals mean is in `mld.daemon.signals`.

Exit codes (protocol#exit-codes): 0 after a graceful stop; 128 + signal when the grace was over or a second signal
came; 1 for failures, failed initialization included; 2 for configuration errors, which `cli` reports.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import PurePath
from random import Random
from typing import Any, TypeVar

from mld.aws.client_factory import ClientFactory, CountedService, client_factory, service_of
from mld.aws.letters import LetterBox, letter_box_of
from mld.aws.table_calls import ANSWER_S_MAX
from mld.consumer.child import ChildCommand, PipeHost
from mld.core.clock import Clock, LoopClock
from mld.core.disks import places_of
from mld.core.errors import MldError
from mld.core.installed import is_installed, runnable
from mld.core.streams import StreamKind, Streams
from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.core.whereabouts import new_worker_id, place_of_process
from mld.daemon.assembly import assemble
from mld.daemon.group_membership import Membership, hold_on
from mld.daemon.reload import Reloader, StreamsReader, note_looks, refuse_unusable, reload_worker
from mld.daemon.showing import ShowingParts, showing
from mld.daemon.signals import StopSignals, hang_up_here, warn_without_init
from mld.daemon.stream_clients import StreamClients
from mld.daemon.systemd import claim_manager
from mld.daemon.until_tip import RunUntilTip, UntilTip
from mld.daemon.worker import Worker
from mld.fleet.fleet import load_of_this_host
from mld.leases.dynamodb import DynamoLeaseTable
from mld.leases.slots import ROOM_MAX
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings
from mld.properties.spark_names import PREFIX, PROGRAM
from mld.properties.values import ChildLog
from mld.protocol.child_command import split_command
from mld.protocol.messages import StreamLabel
from mld.retrieval.reader_factory import LABELS, service_name
from mld.retrieval.stream_naming import StreamNaming
from mld.schemas.preparer import RegistryPreparer, registry_of

log = logging.getLogger(__name__)

T = TypeVar("T")

KINESIS_THREADS_MAX = 24  # for what is large or new, and all calls through botocore
KINESIS_CALLS_MAX = 64  # in flight, not shards: a thousand shards that are polled every 1.5 s, 100 ms away
DYNAMO_OTHERS_MAX = 32  # calls in flight besides renewals: slow answers are waited for side by side
KINESIS_READ_TIMEOUT_S = 30.0  # Java's kinesisRequestTimeout
STREAMS_SHOWN_MAX = 20  # of several, in the first line of the log
SWITCH_INTERVAL_S = 0.002  # a thread that reads a large body gives way this often; 0.5 ms costs an eighth more per GB
KEPT_MEMORY_BYTES = 16 * 1024 * 1024  # an answer; see `_keep_freed_memory`
COLLECT_EVERY = 50_000  # objects: a page of 10,000 records must not start a dozen collections


def run(main: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None) -> T:
    """Do as `asyncio.run`, on that loop."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the loop of uvloop; None, which stands for asyncio's own, where it is not installed."""
    if not is_installed("uvloop"):
        return None
    made: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return made


async def run_daemon(
    settings: Settings,
    properties_file: str,
    overrides: Sequence[str] = (),
    reloader: Reloader | None = None,
    until_tip: UntilTip | None = None,
    streams_reader: StreamsReader | None = None,
    membership: Membership | None = None,
) -> int:
    """Run until stopped; returns the exit code. `properties_file` is an absolute path; children are told of
    those `overrides` (``key=value`` of the command line) that are for the Spark processor. `reloader` reads the file
    again when asked to; None: nothing can change. With `until_tip` the run ends by itself. `streams_reader` reads the
    list of several streams again; None: it stays as it is in `settings`. `membership`: in a group of workers.

    Raises ConfigurationError if a name, the record processor, or a package that the file asks for is refused.
    """
    manager = claim_manager(os.environ, os.getpid())
    worker: Worker | None = None
    metrics = Metrics()

    def reload() -> None:
        reload_worker(worker, reloader, manager, metrics, clock)

    stop = StopSignals(hang_up_here(is_supervised=manager.is_there), reload)
    for remark in refuse_unusable(settings, properties_file):
        log.warning("%s", remark, extra={"action": "configuration", "key": remark.key})
    command = runnable(split_command(settings.child.command))
    worker_id = membership.worker_id if membership else settings.worker_id or new_worker_id()
    factory = client_factory(settings)
    clock = LoopClock(factory.service_time.now)
    metrics.worker.configuration.note_read(properties_file, clock.wall())
    reach = TableReach(settings.lease_table.name, settings.leases.duration_s, clock.monotonic())
    dynamo = _dynamo(settings, factory, metrics, reach, clock)
    letters = letter_box_of(settings, factory)

    def new_service(place: Settings, kind: StreamKind) -> CountedService:
        return _streams(place, factory if place == settings else client_factory(place), metrics, kind)

    reader = streams_reader or StreamsReader(settings.streams, None, Scrubber())
    sources = StreamClients(settings, clock, new_service, reader.read)
    note_looks(reader, metrics, clock)
    schemas = registry_of(settings, factory, clock, metrics.worker)
    opened: list[CountedService | LetterBox | StreamClients | RegistryPreparer] = [sources, dynamo]
    if schemas is not None:
        opened.append(schemas)
    if letters is not None:
        opened.append(letters)
    log.info(
        "starting",
        extra={
            "action": "daemon_starting",
            "application": settings.application_name,
            "stream": settings.stream_name or ", ".join(one.name for one in settings.streams[:STREAMS_SHOWN_MAX]),
            "table": settings.lease_table.name,
            "worker": worker_id,
            "command": command[0],
            "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
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
    if settings.stream_arn is not None:
        environment["MLD_STREAM_ARN"] = settings.stream_arn
    try:
        if not await stop.unless_asked(asyncio.gather(*(one.open() for one in opened))):
            return EXIT_OK
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        _keep_freed_memory()
        gc.set_threshold(COLLECT_EVERY)
        _give_back_start_memory()
        gc.freeze()  # modules and service models stay: else every full collection walks them, 30 ms each time
        table = DynamoLeaseTable(
            dynamo,
            clock,
            table_name=settings.lease_table.name,
            settings=settings.lease_table,
            scan_segments=settings.leases.scan_segments,
        )
        host = PipeHost(
            command,
            clock,
            stop_timeout_s=settings.child.stop_timeout_s,
            environment=environment,
            logs_fields=settings.child.log is ChildLog.FIELDS,
            of_stream=_commands(sources, command, clock),
        )
        worker = assemble(
            settings,
            worker_id,
            sources.ports(),
            table,
            dynamo,
            host,
            clock,
            Random(),
            detect_load=load_of_this_host(clock),
            place=place_of_process(clock.wall()),
            polls_on_a_beat=True,
            letters=letters,
            metrics=metrics,
            prepare=None if schemas is None else schemas.prepare,
        )
        pages = membership.pages if membership else None
        disks = () if reloader is None else places_of(reloader.running, with_log=True)
        parts = ShowingParts(
            settings,
            worker,
            worker_id,
            metrics,
            reach,
            dynamo,
            factory,
            clock,
            manager,
            reader.scrub,
            properties_file,
            pages,
            disks,
        )
        grace_s = settings.shutdown_grace_s
        if until_tip is not None:
            run = RunUntilTip(worker, metrics, worker_id, clock, settings, until_tip, around=lambda: showing(parts))
            return await stop.run(run, grace_s)
        async with showing(parts), _in_group(membership, worker):
            return await stop.run(worker, grace_s)
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
    finally:
        await asyncio.gather(*(one.close() for one in opened))


def _keep_freed_memory() -> None:
    """Let the C library reuse the memory of the last page for the next one, instead of giving it back to the kernel.

    glibc gives back blocks above a threshold, and what is free at the end of its heap above twice that; the threshold
    is that of the largest block that it has given back so far. No page is touched for this block. Without it the kernel
    clears every piece of every line anew, which takes a fifth of the CPU time of a backlog.
    """
    bytes(KEPT_MEMORY_BYTES)


def _give_back_start_memory() -> None:
    """Give the kernel back what the start has freed: 2 MB of 61, most of it from reading the models of services."""
    gc.collect()
    try:
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        pass  # another C library


@asynccontextmanager
async def _in_group(membership: Membership | None, worker: Worker) -> AsyncIterator[None]:
    """Hear of the end of other members and of the supervisor while the worker runs."""
    if membership is None:
        yield
        return

    def on_ended(member: str, until: float) -> None:
        log.info("worker %s has ended", member, extra={"action": "sibling_ended", "worker": member})
        worker.fleet.ended(member, until)

    holding = asyncio.create_task(hold_on(membership, on_ended, worker.request_stop))
    try:
        yield
    finally:
        holding.cancel()


def _streams(settings: Settings, factory: ClientFactory, metrics: Metrics, kind: StreamKind) -> CountedService:
    service = service_of(
        factory,
        service_name(kind),
        label=LABELS[kind],
        threads_max=KINESIS_THREADS_MAX,
        calls_max=KINESIS_CALLS_MAX,
        read_timeout_s=KINESIS_READ_TIMEOUT_S,
    )
    return CountedService(service, service_name(kind), metrics.worker)


def _dynamo(
    settings: Settings, factory: ClientFactory, metrics: Metrics, reach: TableReach, clock: Clock
) -> CountedService:
    service = service_of(
        factory,
        "dynamodb",
        label="DynamoDB",
        threads_max=settings.leases.renewals_concurrent_max,
        calls_max=max(ROOM_MAX, settings.leases.renewals_concurrent_max) + DYNAMO_OTHERS_MAX,
        read_timeout_s=ANSWER_S_MAX,
    )
    return CountedService(service, "dynamodb", metrics.worker, reach, clock.monotonic)


def _naming(command: Sequence[str], streams: Streams, clock: Clock) -> StreamNaming | None:
    """Name streams for the Spark processor, the only one whose positions outlive a stream."""
    return StreamNaming(streams, clock) if any(PurePath(word).name == PROGRAM for word in command) else None


def _commands(clients: StreamClients, command: list[str], clock: Clock) -> Callable[[StreamLabel | None], ChildCommand]:
    """Return how the children of each stream are started, found once; None: those of the only one."""
    known: dict[str | None, ChildCommand] = {}

    def of_stream(label: StreamLabel | None) -> ChildCommand:
        stream = None if label is None else label.id
        if stream not in known:
            read = clients.read_stream(stream)
            text = None if read.own is None else read.own.executable_name
            own = command if text is None else runnable(split_command(text))
            known[stream] = ChildCommand(own, _naming(own, read.streams, clock))
        return known[stream]

    return of_stream
