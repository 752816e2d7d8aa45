"""What `mld status` prints for people, from a daemon's answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mld.operating.listings import Listing
from mld.operating.verdicts import duration

ERROR_CHARACTERS_MAX = 80
COLUMNS = (
    ("shard", False),
    ("state", False),
    ("behind", True),
    ("busy", True),
    ("records", True),
    ("last checkpoint", True),
    ("restarts", True),
    ("last error", False),
)


def daemon_listing(value: Mapping[str, Any]) -> Listing:
    """One row for each shard of the daemon."""
    has_several = any(shard.get("stream") for shard in value["shards"])
    columns = (("stream", False), *COLUMNS) if has_several else COLUMNS
    rows = tuple(
        ((shard.get("stream") or "", *_row(shard)) if has_several else _row(shard)) for shard in value["shards"]
    )
    return Listing("", columns, rows, tuple(_notes(value)))


def headline(value: Mapping[str, Any]) -> str:
    """Who the daemon is."""
    leader = ", leader" if value["isLeader"] else ""
    stream = value["stream"] or "several streams"
    return (
        f"{value['application']} on {stream}: worker {value['worker']}{leader}, pid {value['pid']}, "
        f"mld {value['version']}, mode {value['mode']}, up {duration(value['upSeconds'])}"
    )


def _row(shard: Mapping[str, Any]) -> tuple[str, ...]:
    since = shard["checkpointSecondsAgo"]
    return (
        shard["shard"],
        shard["state"],
        duration(shard["behindSeconds"]),
        "" if shard["busySeconds"] is None else duration(shard["busySeconds"]),
        f"{shard['records']:,}",
        "none yet" if since is None else f"{duration(since)} ago",
        str(shard["restarts"]),
        _short(shard["why"] or shard["lastError"] or ""),
    )


def _short(text: str) -> str:
    return text if len(text) <= ERROR_CHARACTERS_MAX else text[: ERROR_CHARACTERS_MAX - 1] + "…"


def _notes(value: Mapping[str, Any]) -> list[str]:
    count = len(value["shards"])
    notes = [
        f"{count} shard{'' if count == 1 else 's'}; furthest behind: {duration(value['behindSeconds'])}"
        if count
        else "no shard"
    ]
    if not value["isReady"]:
        notes.append(f"not ready: {value['whyNotReady']}")
    if not value["isAlive"]:
        notes.append(f"not alive: {value['whyNotAlive']}")
    if value["unexpectedErrors"]:
        notes.append(f"{value['unexpectedErrors']} unexpected errors: see the log")
    return notes
