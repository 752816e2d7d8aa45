"""What a worker tells of its carried leases in one attribute of its report: two bytes a shard. Pure.

With `mld.heartbeat=worker` there are no renewals that could carry a `ShardStatus`, but there is the heartbeat, which
writes the worker's report. The report has to stay within the write units that it costs anyway, so that lag and activity
are packed: a digest of the keys, the time, and for each key, in order, three bits of activity and thirteen of lag, with
eight significant bits. A reader knows the keys from the rows that bear the worker's mark; a digest that does not fit
them (a lease has just come or gone) makes all of it unknown until the next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from mld.leases.lease import ShardStatus

ACTIVITIES = ("idle", "processing", "failing", "parked", "ending")
DIGEST_BYTES = 4
TIME_BYTES = 5
HEAD_BYTES = DIGEST_BYTES + TIME_BYTES
SHARD_BYTES = 2
UNKNOWN_LAG = 0x1FFF
MANTISSA_BITS = 8
EXPONENT_BITS = 5
SHARDS_MAX = 250
"""With more, the report would cost a write unit more; their lag is not told then."""


def pack(statuses: Mapping[str, ShardStatus | None], at_s: int) -> bytes | None:
    """The statuses of all carried leases, by key; None if they are too many. One that is missing is told as unknown."""
    if len(statuses) > SHARDS_MAX:
        return None
    keys = sorted(statuses)
    words = b"".join(_word(statuses[key]).to_bytes(SHARD_BYTES, "big") for key in keys)
    return _digest(keys) + at_s.to_bytes(TIME_BYTES, "big") + words


def unpack(packed: bytes, keys: Sequence[str]) -> dict[str, ShardStatus]:
    """The statuses of the leases `keys`; none if `packed` is about others, or damaged."""
    ordered = sorted(keys)
    if len(packed) != HEAD_BYTES + SHARD_BYTES * len(ordered) or packed[:DIGEST_BYTES] != _digest(ordered):
        return {}
    at_s = int.from_bytes(packed[DIGEST_BYTES:HEAD_BYTES], "big")
    found = {}
    for number, key in enumerate(ordered):
        start = HEAD_BYTES + SHARD_BYTES * number
        word = int.from_bytes(packed[start : start + SHARD_BYTES], "big")
        activity, lag = word >> (MANTISSA_BITS + EXPONENT_BITS), word & UNKNOWN_LAG
        if activity < len(ACTIVITIES):
            found[key] = ShardStatus(ACTIVITIES[activity], at_s, None if lag == UNKNOWN_LAG else _millis(lag))
    return found


def _word(status: ShardStatus | None) -> int:
    if status is None:
        return (len(ACTIVITIES) << (MANTISSA_BITS + EXPONENT_BITS)) | UNKNOWN_LAG
    lag = UNKNOWN_LAG if status.behind_ms is None else _lag(status.behind_ms)
    return ACTIVITIES.index(status.activity) << (MANTISSA_BITS + EXPONENT_BITS) | lag


def _lag(millis: int) -> int:
    """A floating-point number of milliseconds, rounded down, so that the tip stays the tip."""
    exponent = max(0, millis.bit_length() - MANTISSA_BITS)
    return min(exponent << MANTISSA_BITS | millis >> exponent, UNKNOWN_LAG - 1)


def _millis(lag: int) -> int:
    return (lag & ((1 << MANTISSA_BITS) - 1)) << (lag >> MANTISSA_BITS)


def _digest(keys: Sequence[str]) -> bytes:
    return blake2b("\n".join(keys).encode(), digest_size=DIGEST_BYTES).digest()
