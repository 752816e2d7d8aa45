"""`mld lag --probe`: asks Kinesis which shards a stream has, and how far behind those shards are whose lag is unknown.

For such a shard it reads one record after the checkpoint. Only a few shards are asked at a time, because the consumers
of a shard share its five reads a second. The lag of a shard that cannot be asked stays unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mld.core.errors import (
    StreamError,
)
from mld.core.positions import LATEST, InitialPosition
from mld.core.streams import IteratorType, StartingPoint, Streams
from mld.core.terminal import say
from mld.leases.lease import Lease, ShardStatus
from mld.operating.fleet_sight import Listed
from mld.operating.fleet_status import FleetStatus
from mld.operating.naming import is_meant, settings_of_one
from mld.operating.shard_view import ShardView, Verdict, rejudged
from mld.operating.stream_access import all_shards, streams_of
from mld.properties.settings import Settings
from mld.retrieval.starting_points import initial_position, starting_point

PROBES_CONCURRENT_MAX = 4
PROBE_INTERVAL_S = 0.1
"""Pause after each probe. As `PROBES_CONCURRENT_MAX` shards are asked at a time, 1,000 take half a minute."""
PROBED = "probed"
"""The activity in the status that is made from an answer of Kinesis; the status in a row has a `ShardActivity`."""


async def probed(settings: Settings, status: FleetStatus, lag_max_s: float) -> FleetStatus:
    """Return the fleet's status, with the lag that Kinesis reports for shards whose lag was unknown. These shards
    are judged again, with `lag_max_s` as the greatest lag that is no fault.
    """
    all_lags_ms: dict[str, int] = {}
    all_errors: dict[str, StreamError] = {}
    for stream_settings, leases in by_stream(settings, silent(status)):
        async with streams_of(stream_settings) as streams:
            lags_ms, errors = await probe(streams, leases, initial_position(stream_settings.initial_position))
        all_lags_ms |= lags_ms
        all_errors |= errors
    if all_errors:
        key = min(all_errors)
        say(f"{len(all_errors)} shards could not be asked about, among them {key}: {all_errors[key]}")
    return with_probed(status, all_lags_ms, lag_max_s)


async def listed_of(settings: Settings, status: FleetStatus) -> dict[str | None, Listed]:
    """Return the shards and status of each stream of the file, by label. Streams that cannot be listed are left out."""
    found: dict[str | None, Listed] = {}
    each: list[tuple[str | None, Settings]] = [(one.name, settings_of_one(settings, one)) for one in settings.streams]
    for label, one in each or [(None, settings)]:
        try:
            async with streams_of(one) as streams:
                summary = await streams.describe()
                found[label] = Listed(tuple((await all_shards(streams)).values()), summary.status)
        except StreamError as error:
            say(f"the shards of {label or settings.stream_title} could not be listed: {error}")
    return found


def by_stream(settings: Settings, leases: Sequence[Lease]) -> Iterator[tuple[Settings, list[Lease]]]:
    """Yield the leases of each stream that the file names, with the settings of that stream alone."""
    if not settings.is_multi_stream:
        yield settings, list(leases)
        return
    for stream in dict.fromkeys(lease.stream for lease in leases):
        setting = next((one for one in settings.streams if stream is not None and is_meant(one, stream)), None)
        if setting is not None:
            yield settings_of_one(settings, setting), [lease for lease in leases if lease.stream == stream]


def silent(status: FleetStatus) -> list[Lease]:
    """Return the leases of shards whose lag is unknown, and for which Kinesis can be asked.

    It cannot be asked about a checkpoint LATEST, which names no place in the shard.
    """
    return [
        shard.lease
        for shard in status.open_shards
        if shard.behind_s is None and shard.lease.checkpoint.sequence != LATEST.sequence
    ]


async def probe(
    streams: Streams, leases: list[Lease], initial: InitialPosition
) -> tuple[dict[str, int], dict[str, StreamError]]:
    """Ask for the lag of shards; return the lags in milliseconds, and the errors, each by lease key."""
    answers: dict[str, int] = {}
    refused: dict[str, StreamError] = {}
    waiting = iter(leases)

    async def ask() -> None:
        """Ask for the lag of one lease after the other, with a pause after each."""
        for lease in waiting:
            try:
                iterator = await streams.shard_iterator(lease.shard_id, _after(lease, initial))
                behind_ms = (await streams.get_records(iterator, 1)).millis_behind_latest
                if behind_ms is not None:
                    answers[lease.key] = behind_ms
            except StreamError as error:
                refused[lease.key] = error
            await asyncio.sleep(PROBE_INTERVAL_S)

    await asyncio.gather(*(ask() for _ in range(min(PROBES_CONCURRENT_MAX, len(leases)))))
    return answers, refused


def _after(lease: Lease, initial: InitialPosition) -> StartingPoint:
    """Return the starting point for a read of the first record after the lease's checkpoint."""
    if lease.checkpoint.number is None:
        return starting_point(lease.checkpoint, initial)
    return StartingPoint(IteratorType.AFTER_SEQUENCE_NUMBER, sequence=lease.checkpoint.sequence)


def with_probed(status: FleetStatus, answers: Mapping[str, int], lag_max_s: float) -> FleetStatus:
    """Return the status with the lags (milliseconds) that Kinesis has reported, marked as probed.

    Only verdicts that were unknown change.
    """

    def view(shard: ShardView) -> ShardView:
        """Return the view of a shard with the lag that Kinesis reported; the same view if it reported none.

        An unknown verdict is judged again by that lag. Any other verdict stays, because its reason counts before the
        lag (see `shard_view.judge`).
        """
        behind_ms = answers.get(shard.key)
        if behind_ms is None:
            return shard
        probed_status = ShardStatus(PROBED, int(status.taken_s), behind_ms)
        if shard.verdict is Verdict.UNKNOWN:
            return rejudged(shard, probed_status, lag_max_s, is_probed=True)
        return replace(shard, status=probed_status, age_s=0.0, is_probed=True)

    return replace(status, shards=tuple(map(view, status.shards)))
