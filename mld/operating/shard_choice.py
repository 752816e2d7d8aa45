"""Which shard a person means where a file names several streams, and its lease. Pure.

A shard is written as ``STREAM:SHARD``, both by name or the shard by its number, or as the key of its lease.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mld.core.stream_ids import StreamId, parse_stream_id, stream_of_key
from mld.leases.lease import Lease
from mld.operating.acts.plan import ActRefusedError
from mld.operating.stream_access import shard_id_of
from mld.operating.stream_choice import chosen_stream, names_of, settings_of_one
from mld.properties.settings import Settings, StreamSetting


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
        """Whether this can be the lease of the shard."""
        if self.stream is None or lease.stream is None:
            return lease.key == self.shard_id
        found = parse_stream_id(lease.stream)
        if found is None or lease.shard_id != self.shard_id:
            return False
        if self.stream_id is not None:
            return found == self.stream_id
        is_stream = found.name == self.stream.stream_name and self.stream.account in (None, found.account)
        return is_stream and self.stream.epoch in (None, found.epoch)


def chosen_shard(settings: Settings, text: str) -> ChosenShard:
    """The shard that `text` means. Raises ActRefusedError."""
    if not settings.is_multi_stream:
        return ChosenShard(settings, shard_id_of(text))
    identifier = stream_of_key(text)
    name, colon, shard = text.rpartition(":")
    if identifier is not None:
        name, shard = identifier, text.removeprefix(f"{identifier}:")
    elif not colon and len(settings.streams) > 1:
        names = names_of([one.name for one in settings.streams])
        raise ActRefusedError(f"{text} may be a shard of several streams: write STREAM:SHARD, with a stream of {names}")
    stream = chosen_stream(settings, name or None)
    id_ = None if identifier is None else parse_stream_id(identifier)
    return ChosenShard(settings_of_one(settings, stream), shard_id_of(shard), stream, id_)


def lease_of(leases: Iterable[Lease], shard: ChosenShard) -> Lease | None:
    """The lease of a shard among all leases; of a stream that was made again, that of the latest."""
    found = [lease for lease in leases if shard.is_its(lease)]
    return max(found, key=_epoch, default=None)


def _epoch(lease: Lease) -> int:
    stream = None if lease.stream is None else parse_stream_id(lease.stream)
    return 0 if stream is None else stream.epoch
