"""Puts a replay together: the stream, the child's host and what people see of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import click

from mld.consumer.child import PipeHost, find_executable, runnable
from mld.consumer.ports import ChildStartError
from mld.core.clock import LoopClock
from mld.core.stream_ids import StreamId
from mld.core.streams import HashRange, Streams
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, say
from mld.leases.lease import Lease
from mld.operating.points import Point
from mld.operating.replaying import Replay, Replayed, Replayer
from mld.operating.shard_choice import ChosenShard
from mld.operating.stream_access import SpanError, initial_of, span_start, streams_of
from mld.properties.redaction import printable
from mld.properties.spark import PREFIX
from mld.protocol.command import split_command
from mld.protocol.messages import Dialect, StreamLabel
from mld.retrieval.placement import Placement
from mld.tracking.stream_list import account_and_name

STOP_TIMEOUT_S = 86_400.0
"""A debugger may hold the child at its end, too."""
WORKER_ID = "replay"
UNKNOWN_EPOCH = 1
"""Where neither the settings nor the table nor the service says when a stream was made."""
CHILD_STDERR, CHILD_STDOUT = "child_stderr", "child_stdout"


async def run_replay(
    shard: ChosenShard,
    start: Point,
    until: Point,
    lease: Lease | None,
    command: Sequence[str],
    properties_file: str,
    overrides: Sequence[str],
) -> int:
    """Replay, tell, and return the exit code. Raises MldError if the span cannot be read."""
    settings, shard_id = shard.settings, shard.shard_id
    words = list(command) or split_command(settings.executable_name)
    if find_executable(words) is None:
        raise ChildStartError(f"no executable file {words[0]!r} is found; name the processor after --")
    clock = LoopClock()
    host = PipeHost(
        runnable(words),
        clock,
        stop_timeout_s=STOP_TIMEOUT_S,
        logs_fields=False,
        environment={
            "MLD_STREAM_NAME": settings.stream_name,
            "MLD_APPLICATION_NAME": settings.application_name,
            "MLD_WORKER_ID": WORKER_ID,
            "MLD_PROPERTIES_FILE": properties_file,
            "MLD_OVERRIDES": "\n".join(text for text in overrides if text.startswith(PREFIX)),
            "MLD_DAEMON_PID": str(os.getpid()),
        },
    )
    with _ChildWords():
        async with streams_of(settings) as streams:
            replay = Replay(
                shard_id,
                span_start(start, shard_id, lease, initial_of(settings)),
                until,
                settings.max_records,
                await Placement(streams, LoopClock()).range_of(await _hash_range(streams, shard_id)),
                Dialect(settings.protocol_version),
                settings.call_process_records_even_for_empty_record_list,
                stream=None if shard.stream is None else await _label(streams, shard, lease),
            )
            done = await Replayer(replay, streams, host, clock, say).run()
    return _tell(shard_id, done)


async def _label(streams: Streams, shard: ChosenShard, lease: Lease | None) -> StreamLabel:
    """What the processor is told of its stream: as the lease table has it, else as the service says."""
    summary = await streams.describe()
    if lease is not None and lease.stream is not None:
        return StreamLabel(shard.settings.stream_name, summary.arn, lease.stream)
    account, name = account_and_name(summary.arn)
    configured = None if shard.stream is None else shard.stream.epoch
    epoch = configured or (summary.created_ms or 0) // 1000 or UNKNOWN_EPOCH
    return StreamLabel(name, summary.arn, str(StreamId(account, name, epoch)))


async def _hash_range(streams: Streams, shard_id: str) -> HashRange:
    token = None
    while True:
        page = await streams.list_shards(None, token)
        for shard in page.shards:
            if shard.shard_id == shard_id:
                return shard.hash_range
        token = page.next_token
        if token is None:
            raise SpanError(f"the stream has no shard {shard_id}; `mld leases` shows the shards")


def _tell(shard_id: str, done: Replayed) -> int:
    last = f", the last one {done.last}" if done.last is not None else ""
    say(f"{done.records} records in {done.batches} batches of {shard_id} were processed{last}")
    if done.failure is None:
        say(f"the last checkpoint would have been {done.checkpoint or 'none'}; {done.ended}")
        return EXIT_OK
    say(f"the processor failed at {done.in_hand}: {done.failure} ({done.ended})")
    return EXIT_FAILURE


class _ChildWords(logging.Handler):
    """What the child writes to stderr goes to ours as it is. Of our own log warnings do, and what it writes to stdout
    that is no answer."""

    def __enter__(self) -> None:
        root = logging.getLogger("mld")
        root.addHandler(self)
        self._before = root.level, root.propagate
        root.setLevel(logging.INFO)
        root.propagate = False

    def __exit__(self, *_: object) -> None:
        root = logging.getLogger("mld")
        root.removeHandler(self)
        root.level, root.propagate = self._before

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == CHILD_STDERR:
            click.echo(record.getMessage(), err=True)
        elif record.levelno >= logging.WARNING or getattr(record, "action", "") == CHILD_STDOUT:
            click.echo(f"mld: {printable(record.getMessage())}", err=True)
