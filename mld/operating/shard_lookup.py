"""Asks the lease table which stream a shard belongs to, where a file names several and a person names none."""

from __future__ import annotations

from mld.core.errors import TableMissingError
from mld.core.stream_ids import keys_meant, stream_of_key
from mld.operating.acts.plan import full_key
from mld.operating.fleet_reader import fleet_reader
from mld.properties.settings import Settings


async def with_stream(settings: Settings, name: str) -> str:
    """The key of the only lease that `name` may mean; `name` as it is if it names a stream, or nothing is known of it.

    Raises ActRefusedError if several streams have such a shard, `errors.TableError`.
    """
    if not settings.is_multi_stream or ":" in name:
        return name
    async with fleet_reader(settings) as reader:
        try:
            status = await reader.look()
        except TableMissingError:
            return name
    keys = [shard.key for shard in status.shards]
    return full_key(keys, name, status.labels) if keys_meant(keys, name, status.labels) else name


async def stream_of_shard(settings: Settings, name: str) -> str | None:
    """The identifier of the stream of that shard; None if it is not known. Raises what `with_stream` raises."""
    return stream_of_key(await with_stream(settings, name))
