"""What `mld top` shows: the shards by verdict, the worst first, as many as fit, with rates between two looks. Pure.

A look is the answer of a daemon, or what the lease table tells, in plain values of somebody else: whatever is missing,
or of another type than it should be, is unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mld.operating.listings import NOBODY
from mld.operating.verdicts import RANKS, Verdict, duration

STEADY_S_PER_S = 0.005
"""A lag that changes by less than this, in seconds a second, stands still."""
ENDED = Verdict.ENDED.value
WELL = RANKS[Verdict.OK.value]
SUMMARY_LINES = 2
COLUMNS = (
    "stream",
    "shard",
    "state",
    "owner",
    "behind",
    "trend",
    "records/s",
    "KB/s",
    "busy",
    "restarts",
    "note",
)


@dataclass(frozen=True, slots=True)
class TopShard:
    """One shard at one look; None is what nobody told."""

    key: str
    stream: str
    """What people call its stream among several; else empty."""
    shard: str
    state: str
    rank: int
    """The verdict's; the worst is 0."""
    owner: str | None
    behind_s: float | None
    told_s: float
    """When its lag was told, in seconds of whoever looked."""
    records: int | None
    """Counted since its lease is held."""
    record_bytes: int | None
    records_rate: float | None
    """As the source itself says, per second."""
    kbps: float | None
    busy_s: float | None
    restarts: int | None
    note: str


@dataclass(frozen=True, slots=True)
class TopLook:
    at_s: float
    title: str
    shards: tuple[TopShard, ...]
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class TopTable:
    """What is printed: a summary, columns with a mark for those aligned to the right, rows, and what did not fit."""

    summary: tuple[str, ...]
    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, ...], ...]
    rest: str


# --- looks ------------------------------------------------------------------------------------------------------------


def look_of(value: Mapping[str, Any], at_s: float, title: str, stream: str | None = None) -> TopLook:
    """The open shards of an answer, taken at `at_s`; of one stream only, if its label, name or identifier is given."""
    found = value.get("shards")
    shards = [
        _shard(one, at_s)
        for one in (found if isinstance(found, list) else [])
        if isinstance(one, dict) and (stream is None or stream in _names_of(one))
    ]
    return TopLook(
        at_s=at_s,
        title=title,
        shards=tuple(shard for shard in shards if shard.state != ENDED),
        trouble=_text(value.get("trouble")),
    )


def _names_of(value: Mapping[str, Any]) -> tuple[str | None, ...]:
    id_ = _text(value.get("streamId")) or ""
    return _text(value.get("stream")), id_, id_.split(":")[1] if id_.count(":") > 1 else None


def _shard(value: Mapping[str, Any], at_s: float) -> TopShard:
    state = _text(value.get("state")) or "unknown"
    records, size = _number(value.get("records")), _number(value.get("recordBytes"))
    return TopShard(
        key=_text(value.get("key")) or _text(value.get("shard")) or "?",
        stream=_text(value.get("stream")) or "",
        shard=_text(value.get("shard")) or "?",
        state=state,
        rank=RANKS.get(_text(value.get("verdict")) or state, WELL),
        owner=_text(value.get("owner")),
        behind_s=_number(value.get("behindSeconds")),
        told_s=at_s - (_number(value.get("toldSecondsAgo")) or 0.0),
        records=None if records is None else int(records),
        record_bytes=None if size is None else int(size),
        records_rate=_number(value.get("recordsPerSecond")),
        kbps=_number(value.get("kbPerSecond")),
        busy_s=_number(value.get("busySeconds")),
        restarts=None if (restarts := _number(value.get("restarts"))) is None else int(restarts),
        note=_text(value.get("note")) or _text(value.get("lastError")) or "",
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


# --- the table --------------------------------------------------------------------------------------------------------


def top_table(look: TopLook, before: TopLook | None, rows_max: int | None) -> TopTable:
    """The table of a look, with rates since the one before; at most `rows_max` shards."""
    earlier = {} if before is None else {shard.key: shard for shard in before.shards}
    shards = sorted(look.shards, key=_worst_first)
    shown = shards if rows_max is None else shards[: max(0, rows_max)]
    elapsed_s = 0.0 if before is None else look.at_s - before.at_s
    rates = {shard.key: _records_rate(shard, earlier.get(shard.key), elapsed_s) for shard in shards}
    cells = [
        {
            "stream": shard.stream,
            "shard": shard.shard,
            "state": shard.state,
            "owner": shard.owner or (NOBODY if _knows(look.shards, "owner") else ""),
            "behind": duration(shard.behind_s),
            "trend": _trend(shard, earlier.get(shard.key)),
            "records/s": _amount(rates[shard.key]),
            "KB/s": _amount(_kbps(shard, earlier.get(shard.key), elapsed_s)),
            "busy": "" if shard.busy_s is None else duration(shard.busy_s),
            "restarts": "" if not shard.restarts else str(shard.restarts),
            "note": shard.note,
        }
        for shard in shown
    ]
    columns = tuple(
        (name, name in ("behind", "records/s", "KB/s", "busy", "restarts"))
        for name in COLUMNS
        if name in ("shard", "state", "behind") or any(row[name] for row in cells)
    )
    return TopTable(
        summary=(look.title, _summary(look, rates.values())),
        columns=columns,
        rows=tuple(tuple(row[name] for name, _ in columns) for row in cells),
        rest=_rest(shards[len(shown) :]),
    )


def _knows(shards: Iterable[TopShard], name: str) -> bool:
    return any(getattr(shard, name) is not None for shard in shards)


def _worst_first(shard: TopShard) -> tuple[int, float, str]:
    return shard.rank, -(shard.behind_s or 0.0), shard.key


def _records_rate(shard: TopShard, before: TopShard | None, elapsed_s: float) -> float | None:
    counted = _difference(shard.records, None if before is None else before.records, elapsed_s)
    return shard.records_rate if counted is None else counted


def _kbps(shard: TopShard, before: TopShard | None, elapsed_s: float) -> float | None:
    counted = _difference(shard.record_bytes, None if before is None else before.record_bytes, elapsed_s)
    return shard.kbps if counted is None else counted / 1024


def _difference(now: int | None, before: int | None, elapsed_s: float) -> float | None:
    """Per second; None if a count is missing, or began anew because the lease came back."""
    if now is None or before is None or elapsed_s <= 0 or now < before:
        return None
    return (now - before) / elapsed_s


def _trend(shard: TopShard, before: TopShard | None) -> str:
    """Whether the shard catches up, and how long that will take if it goes on like this."""
    if before is None or shard.behind_s is None or before.behind_s is None or shard.told_s <= before.told_s:
        return ""
    gain = (before.behind_s - shard.behind_s) / (shard.told_s - before.told_s)
    if shard.behind_s < 1.0 or abs(gain) < STEADY_S_PER_S:
        return ""
    return f"caught up in {duration(shard.behind_s / gain)}" if gain > 0 else "falls behind"


def _amount(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def _summary(look: TopLook, rates: Iterable[float | None]) -> str:
    if look.trouble is not None:
        return look.trouble
    counts = Counter(shard.state for shard in look.shards)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])))
    known = [rate for rate in rates if rate is not None]
    speed = f"; {_amount(sum(known))} records/s" if known else ""
    number = len(look.shards)
    behind = max((shard.behind_s for shard in look.shards if shard.behind_s is not None), default=None)
    if not number:
        return "no open shard"
    return f"{number:,} shard{'' if number == 1 else 's'}: {states}; furthest behind: {duration(behind)}{speed}"


def _rest(shards: Sequence[TopShard]) -> str:
    if not shards:
        return ""
    behind = [shard.behind_s for shard in shards if shard.behind_s is not None]
    known = f", at most {duration(max(behind))} behind" if behind else ""
    return f"… and {len(shards):,} more{known}"
