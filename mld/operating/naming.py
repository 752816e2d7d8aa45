"""Which shard and which stream a person means, and one stream of a table with several as commands see and write it.
Pure.

A shard is written as its id, its number, ``STREAM:SHARD`` or the key of its lease; a stream as its label in the file,
its own name or its identifier. Commands on one of several streams plan with the shards' own names, as in a table of one
stream. What they plan becomes writes of the rows of that stream, and of no other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mld.core.positions import StreamId, keys_meant, parse_stream_id, stream_of_key
from mld.leases import writes
from mld.leases.lease import Lease
from mld.leases.table import TableScan
from mld.operating.plan import ActPlan, ActRefusedError, RawTable
from mld.properties.settings import Settings, StreamSetting
from mld.tracking import stream_list
from mld.tracking.stream_list import TrackedList
from mld.tracking.stream_set import within_stream

NAMED_MAX = 5
OTHER_FORM = "mld export and mld restore --from-another"
"""The way of leases into a table of the other form."""
_SHARD_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)

_SHARD_ID = re.compile(r"shardId-(?=[0-9]{12}(?![0-9-]))0*([0-9]+)", re.ASCII)
_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.ASCII)


def names_of(names: Iterable[object], most: int = NAMED_MAX) -> str:
    """Return some of the names, for a sentence."""
    shown = list(map(str, names))
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def with_short_ids(text: str) -> str:
    """Return the text as narrow terminals show it: numbers for shards, workers' ids without most of their UUID.

    Commands take both: see `shard_id_of` and `is_worker`.
    """
    return _UUID.sub(r"\1…", _SHARD_ID.sub(r"\1", text))


def is_worker(worker: str, name: str) -> bool:
    """Return whether a person means this worker by `name`: its id, or that as a narrow terminal shows it."""
    return name in (worker, with_short_ids(worker))


# --- shards -----------------------------------------------------------------------------------------------------------


def shard_id_of(text: str) -> str:
    """Return the id of a shard; ``3`` stands for ``shardId-000000000003``."""
    return f"shardId-{int(text):012d}" if _SHARD_NUMBER.fullmatch(text) else text


def full_key(known: Iterable[str], name: str, labels: Mapping[str, str] | None = None) -> str:
    """Return the lease key that a person means by `name`.

    Raises ActRefusedError for a shard that is not there, or is in several streams.
    """
    keys = sorted(known)
    found = keys_meant(keys, name, labels)
    if len(found) == 1:
        return found[0]
    if found:
        shard = name.rpartition(":")[2]
        streams = [stream_of_key(key) or "" for key in found]
        ways = names_of(f"{(labels or {}).get(stream, stream)}:{shard}" for stream in streams)
        raise ActRefusedError(f"{len(found)} streams have a shard {name}: say which one, as {ways}")
    raise ActRefusedError(f"there is no shard {name} in the lease table; it has {names_of(keys) or 'no leases at all'}")


@dataclass(frozen=True, slots=True)
class ChosenShard:
    """A shard, and the settings with which its stream alone is reached.

    `stream` None: the file names one stream. `stream_id` is there if the key of the lease was given.
    """

    settings: Settings
    shard_id: str
    stream: StreamSetting | None = None
    stream_id: StreamId | None = None

    def is_its(self, lease: Lease) -> bool:
        """Return whether this can be the lease of the shard."""
        if self.stream is None or lease.stream is None:
            return lease.key == self.shard_id
        if self.stream_id is not None:
            is_stream = parse_stream_id(lease.stream) == self.stream_id
        else:
            is_stream = is_meant(self.stream, lease.stream) and self.stream.epoch in (None, _epoch(lease))
        return is_stream and lease.shard_id == self.shard_id


def chosen_shard(settings: Settings, text: str) -> ChosenShard:
    """Return the shard that `text` means. Raises ActRefusedError."""
    if not settings.is_multi_stream:
        return ChosenShard(settings, shard_id_of(text))
    identifier = stream_of_key(text)
    name, colon, shard = text.rpartition(":")
    if identifier is not None:
        name, shard = identifier, text.removeprefix(f"{identifier}:")
    elif not colon and len(settings.streams) > 1:
        names = names_of(one.name for one in settings.streams)
        raise ActRefusedError(f"{text} may be a shard of several streams: write STREAM:SHARD, with a stream of {names}")
    stream = chosen_stream(settings, name or None)
    id_ = None if identifier is None else parse_stream_id(identifier)
    return ChosenShard(settings_of_one(settings, stream), shard_id_of(shard), stream, id_)


def lease_of(leases: Iterable[Lease], shard: ChosenShard) -> Lease | None:
    """Return the lease of a shard among all leases; of a stream that was made again, that of the latest."""
    found = [lease for lease in leases if shard.is_its(lease)]
    return max(found, key=_epoch, default=None)


def _epoch(lease: Lease) -> int:
    stream = None if lease.stream is None else parse_stream_id(lease.stream)
    return 0 if stream is None else stream.epoch


# --- streams of the file ----------------------------------------------------------------------------------------------


def chosen_stream(settings: Settings, name: str | None) -> StreamSetting:
    """Return the stream of the file that `name` means; None: the only one. Raises ActRefusedError."""
    has = names_of(one.name for one in settings.streams)
    if name is None:
        if len(settings.streams) == 1:
            return settings.streams[0]
        raise ActRefusedError(f"the file names several streams: say which one with --stream, of {has}")
    by_label = [one for one in settings.streams if one.name == name]
    found = by_label or [one for one in settings.streams if is_meant(one, name)]
    if len(found) == 1:
        return found[0]
    if found:
        labels = ", ".join(one.name for one in found)
        raise ActRefusedError(f"{name} is the name of several streams of the file: say which one, of {labels}")
    raise ActRefusedError(f"the file has no stream {name}; it has {has}")


def only_stream(settings: Settings, name: str | None) -> StreamSetting | None:
    """Do as `chosen_stream`; None for a file of one stream. Raises ActRefusedError, also if that has another name."""
    if settings.is_multi_stream:
        return chosen_stream(settings, name)
    if name not in (None, settings.stream_name):
        raise ActRefusedError(f"the file names the stream {settings.stream_name} only, and not {name}")
    return None


def is_meant(setting: StreamSetting, name: str) -> bool:
    """Return whether `name` is the own name, or the identifier, of this stream."""
    id_ = parse_stream_id(name)
    if id_ is None:
        return name == setting.stream_name
    return id_.name == setting.stream_name and setting.account in (None, id_.account)


def settings_of_one(settings: Settings, setting: StreamSetting) -> Settings:
    """Return the settings of an application that reads this stream only, for what concerns stream and records."""
    return replace(
        settings,
        streams=(),
        stream_name=setting.stream_name,
        stream_arn=None if setting.arn is None else setting.arn.text,
        initial_position=setting.initial_position,
        kinesis=replace(
            settings.kinesis,
            region=setting.region or settings.kinesis.region,
            credentials=setting.credentials or settings.kinesis.credentials,
        ),
        child=replace(settings.child, command=setting.executable_name or settings.child.command),
        fanout=replace(settings.fanout, consumer_arn=setting.consumer_arn),
    )


# --- streams of the table ---------------------------------------------------------------------------------------------


def of_stream(table: RawTable, stream: str | None) -> RawTable:
    """Return the table with the leases of this stream only; all of it without a stream. The raw rows stay all."""
    if stream is None:
        return table
    scan = table.scan
    leases = tuple(lease for lease in scan.leases if lease.stream == stream)
    corrupt = tuple((key, why) for key, why in scan.corrupt if stream_of_key(key) == stream)
    return RawTable(table.rows, TableScan(leases, corrupt, scan.others))


def within(table: RawTable) -> RawTable:
    """Return the table with the shards' own names as keys of its leases."""
    if all(lease.stream is None for lease in table.scan.leases):
        return table
    return RawTable(table.rows, replace(table.scan, leases=tuple(map(within_stream, table.scan.leases))))


def in_stream(plan: ActPlan, stream: str | None) -> ActPlan:
    """Return the plan for the rows of this stream; as it is without one."""
    if stream is None:
        return plan
    changes = (replace(change, write=writes.of_stream(change.write, stream)) for change in plan.changes)
    return replace(plan, changes=tuple(changes))


def require_form(table: RawTable, *, is_several: bool) -> None:
    """Raise ActRefusedError for a table that is not of the form that the file has."""
    other = next((lease for lease in table.scan.leases if (lease.stream is not None) is not is_several), None)
    if other is not None:
        holds, names, key = (
            ("one stream", "several", "streamName") if is_several else ("several streams", "one", "mld.streams")
        )
        raise ActRefusedError(
            f"the lease table holds {holds} (lease {other.key}), but the file names {names}: use the file with {key}, "
            f"or another tableName, with the leases of this table by {OTHER_FORM}"
        )


def listed(table: RawTable) -> TrackedList:
    """Return the list of streams in the table."""
    return stream_list.parse(table.row(stream_list.KEY) or {})


def streams_in(leases: Iterable[Lease]) -> tuple[StreamId, ...]:
    """Return the streams that the leases name."""
    found = {parse_stream_id(lease.stream) for lease in leases if lease.stream is not None}
    return tuple(sorted(one for one in found if one is not None))


def stream_id_in(table: RawTable, setting: StreamSetting, wanted: str | None = None) -> str:
    """Return the identifier that the leases of a stream of the file have; `wanted` may be one itself.

    Of several incarnations it is the one that the list consumes. Raises ActRefusedError if there is none, or no telling
    which.
    """
    ids = [str(one) for one in streams_in(table.scan.leases)]
    if wanted is not None and wanted in ids:
        return wanted
    found = [one for one in ids if is_meant(setting, one)]
    current = listed(table).current()
    if setting.name in current and current[setting.name].stream in found:
        return current[setting.name].stream
    if len(found) == 1:
        return found[0]
    if found:
        raise ActRefusedError(
            f"the table has leases of {names_of(found)}: say which with --stream and the whole identifier"
        )
    raise ActRefusedError(
        f"the lease table has no lease of stream {setting.name}; it has {names_of(ids) or 'no leases of any'}"
    )
