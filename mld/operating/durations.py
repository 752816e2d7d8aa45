"""`duration`: the one form in which listings, pages and verdicts show a duration. Pure."""

from __future__ import annotations

UNITS = ((120.0, "s", 1.0), (7_200.0, "min", 60.0), (172_800.0, "h", 3_600.0))
"""Units by length: the bound in seconds below which a unit is used, its name, and its seconds."""
DAY_S = 86_400.0


def duration(seconds: float | None) -> str:
    """Return a duration with one unit, such as ``340 ms``, ``12 s`` or ``3 h``; ``unknown`` for None."""
    if seconds is None:
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for bound, unit, size in UNITS:
        if seconds < bound:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / DAY_S:.1f} d"
