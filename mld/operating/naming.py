"""Finds the shard or stream that an operator means by a name. Pure.

A shard can be named by its id, its number, ``STREAM:SHARD`` or its lease key; a stream by its label in the file, its
name in AWS or its identifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mld.core.stream_ids import StreamId, keys_meant, parse_stream_id, stream_of_key
from mld.leases.lease import Lease
from mld.operating.plan import ActRefusedError
from mld.operating.short_ids import names_of, shard_id_of
from mld.properties.settings import Settings, StreamSetting

# --- shards -----------------------------------------------------------------------------------------------------------


def full_key(known: Iterable[str], name: str, labels: Mapping[str, str] | None = None) -> str:
    """Return the lease key that an operator means by `name`.

    `known` has the keys of all leases; `labels` maps the identifier of a stream to its name in the file. Raises
    ActRefusedError if there is no lease of such a shard, or if several streams have a shard of that name.
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
    """A shard that an operator has named."""

    settings: Settings
    """Settings for only the stream of this shard."""
    shard_id: str
    stream: StreamSetting | None = None
    """The stream, if the file names several."""
    stream_id: StreamId | None = None
    """The identifier of the stream, if the operator gave the lease key."""

    def is_its(self, lease: Lease) -> bool:
        """Return whether this lease can belong to the shard.

        In a table of one stream the lease key is the shard id. In a table of several streams the shard id and the
        stream must agree, and the stream's epoch (when it was created), if the operator or the file gives one.
        """
        if self.stream is None or lease.stream is None:
            return lease.key == self.shard_id
        if self.stream_id is not None:
            is_stream = parse_stream_id(lease.stream) == self.stream_id
        else:
            is_stream = is_meant(self.stream, lease.stream) and self.stream.epoch in (None, _epoch(lease))
        return is_stream and lease.shard_id == self.shard_id


def chosen_shard(settings: Settings, text: str) -> ChosenShard:
    """Return the shard that `text` means: a shard's id, its number, ``STREAM:SHARD`` or a lease key. The stream must be
    in `text` if the file names more than one. Raises ActRefusedError.
    """
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
    """Return the lease of the shard, None if it has none. If a stream was made again, the newest stream's lease
    counts.
    """
    found = [lease for lease in leases if shard.is_its(lease)]
    return max(found, key=_epoch, default=None)


def _epoch(lease: Lease) -> int:
    """Return when the lease's stream was created, from the stream's identifier: a stream that was made again has a
    larger epoch. Return 0 for a lease that names no stream.
    """
    stream = None if lease.stream is None else parse_stream_id(lease.stream)
    return 0 if stream is None else stream.epoch


# --- streams of the file ----------------------------------------------------------------------------------------------


def chosen_stream(settings: Settings, name: str | None) -> StreamSetting:
    """Return the stream of the file that `name` means; if `name` is None, the only stream. Raises ActRefusedError."""
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
    """Return the stream that `name` means if the file names several streams, else None.

    Raises ActRefusedError if no stream of the file has this name, or if several have.
    """
    if settings.is_multi_stream:
        return chosen_stream(settings, name)
    if name not in (None, settings.stream_name):
        raise ActRefusedError(f"the file names the stream {settings.stream_name} only, and not {name}")
    return None


def is_meant(setting: StreamSetting, name: str) -> bool:
    """Return whether `name` is this stream's name in AWS, or the stream's identifier."""
    id_ = parse_stream_id(name)
    if id_ is None:
        return name == setting.stream_name
    return id_.name == setting.stream_name and setting.account in (None, id_.account)


def settings_of_one(settings: Settings, setting: StreamSetting) -> Settings:
    """Return the settings as they would be if the file named only this stream."""
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
