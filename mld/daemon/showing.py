"""`showing`: starts everything by which a daemon is observed (pages, control socket, metrics, alerts), and stops it.

All of these read one `DaemonStatus`. The worker needs none of them: a failure here is logged, and the worker goes on.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from random import Random

import mld
from mld.aws.client_factory import ClientFactory
from mld.aws.service import Service
from mld.aws.table_calls import TableCalls
from mld.core import sparkhosts
from mld.core.clock import Clock
from mld.core.disks import DiskPlace
from mld.core.error_boundary import in_background
from mld.core.whereabouts import host_name
from mld.daemon.systemd import ServiceManager
from mld.daemon.worker import Worker
from mld.leases.dynamodb import DynamoLeaseTable
from mld.metrics.identity import Identity
from mld.metrics.reach import TableReach
from mld.metrics.registry import Metrics
from mld.operating.account_view import look_at_account
from mld.operating.events import EventRecorder, EventsTable, recording
from mld.operating.fleet_reader import FleetReader, view_rules
from mld.operating.open_services import REQUEST_TIMEOUT_S
from mld.properties.scrubber import Scrubber
from mld.properties.settings import Settings
from mld.properties.spark_names import PROGRAM
from mld.properties.values import SOCKET_OFF, MetricsOutput
from mld.protocol.child_command import split_command
from mld.serving.daemon_status import DaemonStatus
from mld.serving.summary import summing_up


@dataclass(frozen=True, slots=True)
class ShowingParts:
    """The objects of a daemon that pages, metrics and alerts read."""

    settings: Settings
    worker: Worker
    worker_id: str
    metrics: Metrics
    reach: TableReach
    dynamo: Service
    factory: ClientFactory
    """Makes clients of further services, such as CloudWatch."""
    clock: Clock
    manager: ServiceManager
    scrub: Scrubber
    properties_file: str = ""
    """Named in the commands that alerts and pages propose."""
    group_pages: Path | None = None
    """Socket where the supervisor of a group asks for this worker's pages; None if the worker is in no group."""
    disks: Sequence[DiskPlace] = ()
    """Directories that this daemon and its processors write to."""


@asynccontextmanager
async def showing(parts: ShowingParts) -> AsyncIterator[None]:
    """Run the pages, metrics and so on that the settings ask for while the context is open.

    Raises StartupError if an address cannot be bound.
    """
    worker, settings = parts.worker, parts.settings
    calls = TableCalls(parts.dynamo, settings.lease_table.name, REQUEST_TIMEOUT_S)
    table = EventsTable(calls, parts.clock, Random())
    recorder = EventRecorder(
        parts.metrics.events,
        table,
        parts.clock,
        parts.worker_id,
        parts.scrub,
        lambda: worker.fleet.keeps_events,
    )
    status = _status_of(parts, recorder)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(in_background(status.run, "sampling metrics", parts.clock))
        start = f"mld {mld.__version__} on {host_name()}, pid {os.getpid()}"
        events = recording(recorder, worker.signals.initialized, start, lambda: worker.failure or "")
        await stack.enter_async_context(events)
        if parts.group_pages is not None or parts.settings.serving.http is not None:
            await stack.enter_async_context(_pages(parts.settings, status, parts.group_pages))
        if parts.settings.serving.control_socket != SOCKET_OFF:
            await stack.enter_async_context(_control(parts, status))
        if parts.manager.is_there:
            await stack.enter_async_context(_announcing(parts, status))
        if parts.disks:
            await stack.enter_async_context(_watching_disks(parts))
        await stack.enter_async_context(summing_up(parts.metrics, parts.clock))
        if (url := settings.serving.notify) is not None:
            await stack.enter_async_context(_notifying(parts, status, table, url))
        if settings.metrics.are_sent:
            await stack.enter_async_context(_publishing(parts))
        yield


def _status_of(parts: ShowingParts, recorder: EventRecorder) -> DaemonStatus:
    """Return the status that all pages, commands and alerts read."""
    settings = parts.settings
    worker, spark = parts.worker, is_spark(settings)
    return DaemonStatus(
        identity=Identity(settings.application_name, settings.stream_name, parts.worker_id, mld.__version__),
        metrics=parts.metrics,
        reader=FleetReader(settings, parts.dynamo, _slowly_read(parts), parts.clock, view_rules(settings)),
        clock=parts.clock,
        reach=parts.reach,
        mode=lambda: worker.fleet.version.value,
        is_ready=lambda: worker.is_ready,
        spark_sessions=partial(sparkhosts.shown, settings.application_name) if spark else tuple,
        spark_figures=partial(sparkhosts.figures, settings.application_name, os.getpid()) if spark else lambda: None,
        scrub=parts.scrub,
        own_events=lambda: recorder.recent,
        account=partial(look_at_account, parts.dynamo, parts.clock),
        file=parts.properties_file,
    )


def _slowly_read(parts: ShowingParts) -> DynamoLeaseTable:
    """Return the lease table with scans that read one page at a time, because a page for people may take longer."""
    return DynamoLeaseTable(
        parts.dynamo,
        parts.clock,
        table_name=parts.settings.lease_table.name,
        scan_segments=1,
        request_timeout_s=REQUEST_TIMEOUT_S,
    )


def is_spark(settings: Settings) -> bool:
    """Return whether the record processor is the Spark processor of mld."""
    return any(PurePath(word).name == PROGRAM for word in split_command(settings.child.command))


def _announcing(parts: ShowingParts, status: DaemonStatus) -> AbstractAsyncContextManager[None]:
    """Return the context in which the service manager is told what the daemon does."""
    from mld.daemon.announcements import announcing
    from mld.serving.summary import status_line

    return announcing(
        parts.manager,
        parts.clock,
        grace_s=parts.settings.shutdown_grace_s,
        initialized=parts.worker.signals.initialized,
        stop_asked=parts.worker.signals.stop_asked,
        overdue=status.overdue,
        text=lambda: status_line(parts.metrics, status.instant()),
    )


@asynccontextmanager
async def _notifying(parts: ShowingParts, status: DaemonStatus, table: EventsTable, url: str) -> AsyncIterator[None]:
    """Post alerts to the webhook until the context ends."""
    from mld.aws.webhook import Webhook
    from mld.serving.notifier import POST_TIMEOUT_S, Notifier

    webhook, fleet = Webhook(url, POST_TIMEOUT_S), parts.worker.fleet
    notifier = Notifier(
        webhook.post,
        status.look,
        status.own_sight,
        lambda: fleet.raises_alerts,
        table,
        parts.clock,
        status.identity,
        parts.scrub,
        parts.settings.serving.notify_details,
    )
    with closing(webhook):
        async with in_background(notifier.run, "raising alerts", parts.clock):
            yield


@asynccontextmanager
async def _watching_disks(parts: ShowingParts) -> AsyncIterator[None]:
    """Check the directories of the daemon until the context ends."""
    from mld.serving.disks import DiskWatcher, in_threads

    with in_threads(parts.disks) as look_at:
        watcher = DiskWatcher(parts.disks, look_at, parts.metrics.worker.disks, parts.metrics.events, parts.clock)
        async with in_background(watcher.run, "looking at disks", parts.clock):
            yield


def _publishing(parts: ShowingParts) -> AbstractAsyncContextManager[None]:
    """Return the context in which metrics are sent to CloudWatch."""
    from mld.serving.cloudwatch import publishing

    return publishing(parts.settings, parts.metrics, parts.factory, parts.clock)


def _pages(settings: Settings, status: DaemonStatus, group_pages: Path | None) -> AbstractAsyncContextManager[None]:
    """Return the context in which the web pages are served."""
    from mld.serving.web_pages import WebPages
    from mld.serving.web_serving import serving

    pages = WebPages(status, with_metrics=MetricsOutput.PROMETHEUS in settings.metrics.outputs)
    return serving(pages.routes(), settings.serving, group_pages)


@asynccontextmanager
async def _control(parts: ShowingParts, status: DaemonStatus) -> AsyncIterator[None]:
    """Serve the control socket. If that fails, a warning is logged and the worker consumes without it."""
    from mld.serving.control import ControlServer
    from mld.serving.control_answers import ControlAnswers
    from mld.serving.control_start import keep_control, serve_control

    server = ControlServer(ControlAnswers(status, parts.worker.parts.traces, parts.clock).routes())
    where = parts.settings.application_name, parts.settings.serving.control_socket, os.environ
    is_served = await serve_control(server, *where) is not None
    keep = partial(keep_control, server, *where, parts.clock)
    try:
        async with in_background(keep, "keeping the control socket", parts.clock) if is_served else nullcontext():
            yield
    finally:
        await server.close()
