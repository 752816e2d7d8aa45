"""`run_daemon`: the process of one worker, from its settings to its exit code.

Exit codes (protocol#exit-codes): 0 after a graceful stop; 128 + signal when the grace period was over or a second
signal came; 1 for failures, failed initialization included; 2 for configuration errors, which `cli` reports.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from mld.aws.client_factory import client_factory
from mld.aws.counted_service import CountedService
from mld.aws.letter_boxes import letter_box_of
from mld.aws.letters import LetterBox
from mld.consumer.child import PipeHost
from mld.core.clock import LoopClock
from mld.core.disks import places_of
from mld.core.errors import MldError
from mld.core.installed import runnable
from mld.core.streams import StreamKind
from mld.core.terminal import EXIT_FAILURE, EXIT_OK
from mld.core.whereabouts import new_worker_id, place_of_process
from mld.daemon.assembly import assemble
from mld.daemon.child_setup import child_environment, commands_by_stream
from mld.daemon.group_membership import Membership, hold_on
from mld.daemon.missing_init import warn_without_init
from mld.daemon.process_tuning import tune_process
from mld.daemon.reload import Reloader, ReloadRequests, refuse_unusable, reload_worker
from mld.daemon.service_clients import dynamo_client, stream_client
from mld.daemon.showing import ShowingParts, showing
from mld.daemon.signals import StopSignals, hang_up_here
from mld.daemon.stream_clients import StreamClients
from mld.daemon.streams_reader import StreamsReader, note_looks
from mld.daemon.systemd import claim_manager
from mld.daemon.until_tip import RunUntilTip, UntilTip
from mld.daemon.worker import Worker
from mld.fleet.fleet import load_of_this_host
from mld.leases.dynamodb import DynamoLeaseTable
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.properties.printable import printable
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings
from mld.protocol.child_command import split_command
from mld.schemas.registry_preparer import RegistryPreparer, registry_of

log = logging.getLogger(__name__)

STREAMS_SHOWN_MAX = 20  # names of streams in the first line of the log


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `mld run` was asked to do."""

    settings: Settings
    properties_file: str
    """Absolute path."""
    overrides: Sequence[str] = ()
    """The `key=value` options of the command line. Children get those that are for the Spark processor."""
    reloader: Reloader | None = None
    """Reads the properties file again on request; with None, settings cannot change."""
    until_tip: UntilTip | None = None
    """Set if the run ends by itself once the stream is read to its tip."""
    streams_reader: StreamsReader | None = None
    """Reads the list of several streams again; with None, the list stays as it is in `settings`."""
    membership: Membership | None = None
    """Set if this worker belongs to a group."""


async def run_daemon(request: RunRequest) -> int:
    """Run a worker until it is stopped, and return the exit code.

    Raises ConfigurationError if a name, the record processor, or a package that the file asks for is refused.
    """
    daemon = _Daemon(request)
    daemon.log_start()
    try:
        if not await daemon.open_clients():  # a signal asked for a stop
            return EXIT_OK
        tune_process()
        return await daemon.run(daemon.make_worker())
    except MldError as error:
        log.error("%s", error, extra={"action": "daemon_failed"})
        return EXIT_FAILURE
    finally:
        await daemon.close_clients()


class _Daemon:
    """The AWS clients and the worker of one process. `run_daemon` makes them step by step."""

    def __init__(self, request: RunRequest) -> None:
        """Make what needs no I/O to AWS: the clients, which are not open yet, and what they need. Handle signals from
        now on. Raises ConfigurationError for settings that cannot work.
        """
        settings = self.settings = request.settings
        self.request = request
        self.metrics = Metrics()
        self.worker: Worker | None = None  # made by `make_worker`
        self.manager = claim_manager(os.environ, os.getpid())
        self.stop = StopSignals(hang_up_here(is_supervised=self.manager.is_there), ReloadRequests(self._reload).ask)
        for remark in refuse_unusable(settings, request.properties_file):
            log.warning("%s", remark, extra={"action": "configuration", "key": remark.key})
        self.command = runnable(split_command(settings.child.command))
        membership = request.membership
        self.worker_id = membership.worker_id if membership else settings.worker_id or new_worker_id()
        self.factory = client_factory(settings)
        self.clock = LoopClock(self.factory.service_time.now)
        self.metrics.worker.configuration.note_read(request.properties_file, self.clock.wall())
        self.reach = TableReach(settings.lease_table.name, settings.leases.duration_s, self.clock.monotonic())
        self.dynamo = dynamo_client(settings, self.factory, self.metrics, self.reach, self.clock)
        self.letters = letter_box_of(settings, self.factory)
        self.streams_reader = request.streams_reader or StreamsReader(settings.streams, None, Scrubber())
        self.streams = StreamClients(settings, self.clock, self._new_stream_client, self.streams_reader.read)
        note_looks(self.streams_reader, self.metrics, self.clock)
        self.schemas = registry_of(settings, self.factory, self.clock, self.metrics.worker)

    def _new_stream_client(self, settings: Settings, kind: StreamKind) -> CountedService:
        """Make a client, not yet open, for streams of this kind. Other settings than the daemon's have another region
        or other credentials.
        """
        factory = self.factory if settings == self.settings else client_factory(settings)
        return stream_client(factory, self.metrics, kind)

    async def _reload(self) -> None:
        """Read the properties file again, at SIGHUP."""
        await reload_worker(self.worker, self.request.reloader, self.manager, self.metrics, self.clock)

    def log_start(self) -> None:
        """Log the first line, with the names and settings that identify this worker."""
        settings = self.settings
        log.info(
            "starting",
            extra={
                "action": "daemon_starting",
                "application": settings.application_name,
                "stream": settings.stream_name or ", ".join(item.name for item in settings.streams[:STREAMS_SHOWN_MAX]),
                "table": settings.lease_table.name,
                "worker": self.worker_id,
                "command": self.command[0],
                "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            },
        )
        warn_without_init()

    def _clients(self) -> list[CountedService | LetterBox | StreamClients | RegistryPreparer]:
        """Return everything that has to be opened before the worker is made, and closed after it."""
        optional = [client for client in (self.schemas, self.letters) if client is not None]
        return [self.streams, self.dynamo, *optional]

    async def open_clients(self) -> bool:
        """Open all clients. Return False if a signal asked for a stop before they were open."""
        return await self.stop.unless_asked(asyncio.gather(*(client.open() for client in self._clients())))

    async def close_clients(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients()))

    def make_worker(self) -> Worker:
        """Put the worker together from the clients of this process, and keep it for reloads."""
        self.worker = assemble(
            self.settings,
            self.worker_id,
            self.streams.ports(),
            self._lease_table(),
            self.dynamo,
            self._child_host(),
            self.clock,
            Random(),
            detect_load=load_of_this_host(self.clock),
            place=place_of_process(self.clock.wall()),
            polls_on_a_beat=True,
            letters=self.letters,
            metrics=self.metrics,
            prepare=None if self.schemas is None else self.schemas.prepare,
            fit=lambda text: printable(self.streams_reader.scrub(text)),
        )
        return self.worker

    def _lease_table(self) -> DynamoLeaseTable:
        """Return the lease table as the settings describe it."""
        return DynamoLeaseTable(
            self.dynamo,
            self.clock,
            table_name=self.settings.lease_table.name,
            settings=self.settings.lease_table,
            scan_segments=self.settings.leases.scan_segments,
        )

    def _child_host(self) -> PipeHost:
        """Return the object that starts and runs the record processors of all shards."""
        request, child = self.request, self.settings.child
        return PipeHost(
            self.command,
            self.clock,
            stop_timeout_s=child.stop_timeout_s,
            environment=child_environment(self.settings, self.worker_id, request.properties_file, request.overrides),
            logs_fields=child.logs_fields,
            of_stream=commands_by_stream(self.streams, self.command, self.clock),
        )

    async def run(self, worker: Worker) -> int:
        """Run the worker until it is stopped, or until it has read its stream to the tip; return the exit code."""
        parts, grace_s, until_tip = self._showing_parts(worker), self.settings.shutdown_grace_s, self.request.until_tip
        if until_tip is None:
            async with showing(parts), _in_group(self.request.membership, worker):
                return await self.stop.run(worker, grace_s)
        run = RunUntilTip(
            worker,
            self.metrics,
            self.worker_id,
            self.clock,
            self.settings,
            until_tip,
            around=lambda: showing(parts),
        )
        return await self.stop.run(run, grace_s)

    def _showing_parts(self, worker: Worker) -> ShowingParts:
        """Return the objects that the pages, metrics and alerts of this daemon read."""
        reloader, membership = self.request.reloader, self.request.membership
        return ShowingParts(
            self.settings,
            worker,
            self.worker_id,
            self.metrics,
            self.reach,
            self.dynamo,
            self.factory,
            self.clock,
            self.manager,
            self.streams_reader.scrub,
            self.request.properties_file,
            group_pages=membership.pages if membership else None,
            disks=() if reloader is None else places_of(reloader.running, with_log=True),
        )


@asynccontextmanager
async def _in_group(membership: Membership | None, worker: Worker) -> AsyncIterator[None]:
    """Keep the worker informed when other members of its group end, and stop it when the supervisor ends.

    This lasts while the context is open.
    """
    if membership is None:
        yield
        return

    def on_ended(member: str, until: float) -> None:
        """Have the fleet take the leases of a member that has ended."""
        log.info("worker %s has ended", member, extra={"action": "sibling_ended", "worker": member})
        worker.fleet.ended(member, until)

    reading_lifeline = asyncio.create_task(hold_on(membership, on_ended, worker.request_stop))
    try:
        yield
    finally:
        reading_lifeline.cancel()
