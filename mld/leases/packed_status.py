"""What a worker tells of its covered leases in one attribute of its report: at most two bytes a shard. Pure.

With `mld.heartbeat=worker` there are no renewals that could carry a `ShardStatus`, but there is the heartbeat, which
writes the worker's report. The report must cost no more write units than without, so what does not fit stays out: first
the precision of the lag, then everything. The attribute has

    4 bytes  digest of the keys      1 byte  form      4 bytes  time in epoch seconds
    for each key in order:           EXACT: 2 bytes, three bits of activity and thirteen of lag, to eight significant
                                     bits; COARSE: 1 byte, three bits and five, within a factor of two, down; SQUEEZED:
                                     the same, compressed

A reader knows the keys from the rows that bear the worker's mark. A digest that does not fit them, because a lease has
just come or gone, makes all of it unknown until the next heartbeat.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import IntEnum
from hashlib import blake2b

from mld.core.periods import STATUS_BYTES
from mld.core.turns import SLICE, Steps
from mld.leases.lease import ShardStatus
from mld.metrics.shard import ShardMetrics

ACTIVITIES = ("idle", "processing", "failing", "parked", "ending", "paused", "stalled", "unreadable")
NO_ACTIVITY = ACTIVITIES.index("stalled")
"""With an unknown lag it says nothing of the shard: what stands still has a lag, and three bits hold no more."""
DIGEST_BYTES = 4
FORM_AT, TIME_AT = DIGEST_BYTES, DIGEST_BYTES + 1
TIME_BYTES = 4
TIME_S_MAX = (1 << 8 * TIME_BYTES) - 1
HEAD_BYTES = TIME_AT + TIME_BYTES

UNKNOWN_LAG = 0x1FFF
MANTISSA_BITS = 8
EXPONENT_BITS = 5
LAG_BITS = MANTISSA_BITS + EXPONENT_BITS

COARSE_LAG_BITS = 5
COARSE_UNKNOWN = 0x1F
COARSE_FIRST_MS, COARSE_STEP = 500, 1.9
COARSE_LAGS_MS = (0, 1, *(round(COARSE_FIRST_MS * COARSE_STEP**step) for step in range(COARSE_UNKNOWN - 2)))
"""The lags that a coarse byte can tell, in milliseconds, up to a year; each stands for all up to the next."""


def status_of(part: ShardMetrics | None, wall_s: float) -> ShardStatus | None:
    """Return what the row of a shard tells people at `wall_s`; None if nobody works on it."""
    if part is None:
        return None
    return ShardStatus(
        part.activity_at(wall_s).value, int(wall_s), part.lag_ms(wall_s), part.delivered, part.why_at(wall_s)
    )


class Form(IntEnum):
    """How the statuses are written."""

    EXACT = 0
    COARSE = 1
    SQUEEZED = 2


WIDTHS: Mapping[int, int] = {Form.EXACT: STATUS_BYTES, Form.COARSE: 1}
"""Bytes a shard."""


def pack(statuses: Mapping[str, ShardStatus | None], at_s: int, room: int) -> Steps[bytes | None]:
    """Return the statuses of all covered leases, by key, in at most `room` bytes; None if they do not fit.

    One that is None is told as unknown.
    """
    keys = sorted(statuses)
    yield
    is_exact = HEAD_BYTES + 2 * len(keys) <= room
    told = bytearray()
    for number, key in enumerate(keys, start=1):
        status = statuses[key]
        told += _exact(status) if is_exact else _coarse(status)
        if number % SLICE == 0:
            yield
    form, body = Form.EXACT if is_exact else Form.COARSE, bytes(told)
    if HEAD_BYTES + len(body) > room:
        form, body = Form.SQUEEZED, zlib.compress(body)
    if HEAD_BYTES + len(body) > room:
        return None
    return _digest(keys) + bytes([form]) + _time(at_s) + body


def unpack(packed: bytes, keys: Sequence[str]) -> dict[str, ShardStatus]:
    """Return the statuses of the leases `keys`; none if `packed` is about others, or damaged."""
    ordered = sorted(keys)
    if len(packed) < HEAD_BYTES or packed[:DIGEST_BYTES] != _digest(ordered):
        return {}
    form, body = packed[FORM_AT], packed[HEAD_BYTES:]
    if form == Form.SQUEEZED:
        form, body = Form.COARSE, _unsqueezed(body, len(ordered))
    width = WIDTHS.get(form)
    if width is None or len(body) != width * len(ordered):
        return {}
    at_s = int.from_bytes(packed[TIME_AT:HEAD_BYTES], "big")
    found = {}
    for number, key in enumerate(ordered):
        word = int.from_bytes(body[number * width : (number + 1) * width], "big")
        activity, behind_ms = _read_exact(word) if width == 2 else _read_coarse(word)
        if activity != NO_ACTIVITY or behind_ms is not None:
            found[key] = ShardStatus(ACTIVITIES[activity], at_s, behind_ms)
    return found


def _time(at_s: int) -> bytes:
    return min(max(0, at_s), TIME_S_MAX).to_bytes(TIME_BYTES, "big")


def _unsqueezed(body: bytes, length: int) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, length + 1)
    except zlib.error:
        return b""


def _told(status: ShardStatus | None) -> tuple[int, int | None]:
    """Return the activity's number, and the lag."""
    if status is None or status.activity not in ACTIVITIES:
        return NO_ACTIVITY, None
    return ACTIVITIES.index(status.activity), status.behind_ms


def _exact(status: ShardStatus | None) -> bytes:
    activity, behind_ms = _told(status)
    lag = UNKNOWN_LAG if behind_ms is None else _lag(behind_ms)
    return (activity << LAG_BITS | lag).to_bytes(2, "big")


def _coarse(status: ShardStatus | None) -> bytes:
    activity, behind_ms = _told(status)
    lag = COARSE_UNKNOWN if behind_ms is None else bisect_right(COARSE_LAGS_MS, behind_ms) - 1
    return bytes([activity << COARSE_LAG_BITS | lag])


def _read_exact(word: int) -> tuple[int, int | None]:
    lag = word & UNKNOWN_LAG
    return word >> LAG_BITS, None if lag == UNKNOWN_LAG else _millis(lag)


def _read_coarse(word: int) -> tuple[int, int | None]:
    lag = word & COARSE_UNKNOWN
    return word >> COARSE_LAG_BITS, None if lag == COARSE_UNKNOWN else COARSE_LAGS_MS[lag]


def _lag(millis: int) -> int:
    """Pack milliseconds as a floating-point number of our own, rounded down, so that the tip stays the tip."""
    exponent = max(0, millis.bit_length() - MANTISSA_BITS)
    return min(exponent << MANTISSA_BITS | millis >> exponent, UNKNOWN_LAG - 1)


def _millis(lag: int) -> int:
    return (lag & ((1 << MANTISSA_BITS) - 1)) << (lag >> MANTISSA_BITS)


def _digest(keys: Sequence[str]) -> bytes:
    return blake2b("\n".join(keys).encode(), digest_size=DIGEST_BYTES).digest()
