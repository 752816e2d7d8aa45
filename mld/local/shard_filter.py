"""`matches`: decides whether ListShards returns a shard, for each filter of the API (shards#listing-filter). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from mld.local.stream_state import ShardState


class FilterType(Enum):
    """The types of ShardFilter in the API."""

    AFTER_SHARD_ID = "AFTER_SHARD_ID"
    AT_TRIM_HORIZON = "AT_TRIM_HORIZON"
    FROM_TRIM_HORIZON = "FROM_TRIM_HORIZON"
    AT_LATEST = "AT_LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    FROM_TIMESTAMP = "FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ListFilter:
    """A filter. AFTER_SHARD_ID needs `shard_id`; the two timestamp filters need `timestamp_s` (epoch seconds)."""

    type: FilterType
    shard_id: str | None = None
    timestamp_s: float | None = None


def matches(shard: ShardState, wanted: ListFilter, horizon_s: float) -> bool:
    """Return whether a shard that still has records within retention passes the filter.

    `horizon_s` is the trim horizon: the time before which records are trimmed, or the creation of the stream if that is
    later. A shard that was closed exactly then was not open any more at the horizon; but for the timestamp filters AWS
    documents that a shard counts if it was closed at that time or later. If the time in a filter is before the horizon,
    the horizon is used. AWS documents that for FROM_TIMESTAMP; we assume it for AT_TIMESTAMP.
    """
    match wanted.type:
        case FilterType.AT_LATEST:
            return shard.is_open
        case FilterType.FROM_TRIM_HORIZON:
            return True
        case FilterType.AFTER_SHARD_ID:
            return shard.shard_id > (wanted.shard_id or "")
        case FilterType.AT_TRIM_HORIZON:
            return shard.created_s <= horizon_s and (shard.closed_s is None or shard.closed_s > horizon_s)
        case FilterType.AT_TIMESTAMP:
            time_s = max(wanted.timestamp_s or 0.0, horizon_s)
            return shard.created_s <= time_s and (shard.closed_s is None or shard.closed_s >= time_s)
        case FilterType.FROM_TIMESTAMP:
            return shard.closed_s is None or shard.closed_s >= max(wanted.timestamp_s or 0.0, horizon_s)
