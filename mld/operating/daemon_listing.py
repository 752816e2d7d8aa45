"""`daemon_listing`: renders the answer of a daemon to `mld status` as text. Pure.

Nothing heavy is imported here, because a supervisor may call `mld status` every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mld.operating.durations import duration
from mld.operating.text_table import FAULTS_SHOWN, Listing, listing_of

ERROR_CHARACTERS_MAX = 80
CHILDREN_SHOWN = 16
"""How many children of a shard a listing names. JSON has all."""


def daemon_listing(value: Mapping[str, Any]) -> Listing:
    """Return a listing of a daemon's shards, from its answer to `mld status`."""
    header = "stream, shard, state, behind>, busy>, records>, last checkpoint>, restarts>, last error"
    rows = ((shard.get("stream") or "", *_daemon_row(shard)) for shard in value["shards"])
    return listing_of(header, rows, _daemon_notes(value))


def daemon_headline(value: Mapping[str, Any]) -> str:
    """Return a line with the daemon's application, worker id, process and version."""
    leader = ", leader" if value["isLeader"] else ""
    stream = value["stream"] or "several streams"
    return (
        f"{value['application']} on {stream}: worker {value['worker']}{leader}, pid {value['pid']}, "
        f"mld {value['version']}, mode {value['mode']}, up {duration(value['upSeconds'])}"
    )


def _daemon_row(shard: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one shard of a daemon."""
    checkpointed_ago_s = shard["checkpointSecondsAgo"]
    return (
        shard["shard"],
        shard["state"],
        duration(shard["behindSeconds"]),
        "" if shard["busySeconds"] is None else duration(shard["busySeconds"]),
        f"{shard['records']:,}",
        "none yet" if checkpointed_ago_s is None else f"{duration(checkpointed_ago_s)} ago",
        str(shard["restarts"]),
        _shortened(shard["why"] or shard["lastError"] or ""),
    )


def _shortened(text: str) -> str:
    return text if len(text) <= ERROR_CHARACTERS_MAX else text[: ERROR_CHARACTERS_MAX - 1] + "…"


def children_in_words(shard: Mapping[str, Any]) -> list[str]:
    """Return one sentence about the load of the children of a shard; none if the shard has only one child."""
    children = shard.get("childProcesses") or ()
    if not children:
        return []
    shares = [one["share"] for one in children if one["share"] is not None]
    busiest = f", the busiest gets {max(shares):.0%} of the records" if shares else ""
    busy = [one for one in children if one["inHand"] or one["waiting"]]
    loads = [f"child {one['number']} {_load(one)}" for one in busy[:CHILDREN_SHOWN]]
    loads += [f"{len(busy) - CHILDREN_SHOWN} more have records"] if len(busy) > CHILDREN_SHOWN else []
    return [f"{len(children)} children{busiest}: {', '.join(loads) or 'none has records'}"]


def _load(child: Mapping[str, Any]) -> str:
    """Return in words how many records a child was sent and has not answered (`inHand`), and how many wait for it."""
    waiting = f"{child['waiting']:,} wait" if child["waiting"] else ""
    if child["busySeconds"] is None:
        return f"has none in hand, {waiting}" if waiting else "has none"
    has = f"has {child['inHand']:,} in hand for {duration(child['busySeconds'])}"
    return f"{has}, {waiting}" if waiting else has


def _daemon_notes(value: Mapping[str, Any]) -> list[str]:
    """Return the lines below the listing of a daemon's shards."""
    count = len(value["shards"])
    shards, behind = f"{count} shard{'' if count == 1 else 's'}", duration(value["behindSeconds"])
    notes = (
        f"{shards}; furthest behind: {behind}" if count else "no shard",
        None if value["isReady"] else f"not ready: {value['whyNotReady']}",
        None if value["isAlive"] else f"not alive: {value['whyNotAlive']}",
        f"{value['unexpectedErrors']} unexpected errors: see the log" if value["unexpectedErrors"] else None,
    )
    lines = [f"{one['subject']}: {one['words']} -> {one['remedy']}" for one in value["faults"]]
    children = [f"{shard['shard']}: {words}" for shard in value["shards"] for words in children_in_words(shard)]
    return [*filter(None, notes), *children, *lines[:FAULTS_SHOWN]]
