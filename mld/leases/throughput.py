"""`Throughput`: measures how fast a shard delivers, for `throughputKBps` in its row. Rule: metrics#lease-throughput.

At each renewal a sample is taken: the bytes since the previous sample, divided by the renewal interval. The samples are
smoothed by an exponential moving average.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

ALPHA = 0.5
BYTES_PER_KB = 1024
_SIX_DECIMALS = Decimal("0.000001")


class Throughput:
    """Measures the throughput during one holding. `seed_kbps` is the previous holder's value in the row, if any; it is
    included in the first average.
    """

    def __init__(self, seed_kbps: float | None, interval_s: float) -> None:
        self._interval_s = interval_s
        self._average_kbps: float | None = None
        # The previous holder's value counts as if that many bytes had been delivered in the first interval.
        self._bytes = round((seed_kbps or 0.0) * BYTES_PER_KB * interval_s)
        self._has_records = seed_kbps is not None

    def record(self, data_bytes: int) -> None:
        """Count a delivered batch with this much payload."""
        self._bytes += data_bytes
        self._has_records = True

    def sample_kbps(self) -> float | None:
        """End the present interval and return the average; None if neither this holder nor the previous one has
        delivered anything.
        """
        if not self._has_records:
            return None
        now_kbps = self._bytes / BYTES_PER_KB / self._interval_s
        self._bytes = 0
        if self._average_kbps is None:
            self._average_kbps = now_kbps
        else:
            self._average_kbps = ALPHA * now_kbps + (1 - ALPHA) * self._average_kbps
        return float(Decimal(repr(self._average_kbps)).quantize(_SIX_DECIMALS, ROUND_HALF_UP))
