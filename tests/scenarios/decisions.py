"""Commands that show one pure decision, for worked examples: shard sync, the taker, the filter."""

from __future__ import annotations

from collections import Counter
from random import Random

from mld.core.positions import AT_TIMESTAMP, SHARD_END, TRIM_HORIZON, InitialPosition, Position
from mld.core.stillness import Stillness
from mld.core.streams import Shard
from mld.leases.lease import Lease
from mld.leases.take_plan import SeenCounters, decide, observe
from mld.protocol.messages import Record
from tests.support.kpl import User, aggregate
from tests.support.pages import page_with, places
from tests.support.settings import rules
from tests.unit.shards.twins import grow, leases_for_empty_table, missing_leases, numbers, plain_missing_leases, sid

LEASE_DURATION_S = 10.0
NOW_S = 1000.0


def parse_graph(text: str) -> tuple[Shard, ...]:
    """``11: 0 1 | 103: 0+1>2 | 206: 2>3,4``: generations with the sequence number at which they begin."""
    births: dict[int, int] = {}
    edges: dict[int, tuple[int, ...]] = {}
    for generation in text.split("|"):
        born, _, shards = generation.partition(":")
        for shard in shards.split():
            parents, _, children = shard.rpartition(">")
            for child in map(int, children.split(",")):
                births[child] = int(born)
                if parents:
                    edges[child] = tuple(map(int, parents.split("+")))
    return grow(edges, births)


def sync_text(shards: tuple[Shard, ...], words: list[str]) -> str:
    """``LATEST empty``, ``AT_TIMESTAMP 150 empty`` or ``LATEST with 3 4! 5`` (! is at SHARD_END): what is created."""
    sentinel = Position(words.pop(0))
    initial = InitialPosition(sentinel, float(words.pop(0)) if sentinel == AT_TIMESTAMP and words[0].isdigit() else 0.0)
    if words == ["empty"]:
        return _created(leases_for_empty_table(_snapshot(shards, initial), initial))
    existing = [_row(shards, word) for word in words[1:]]
    ours = missing_leases(shards, existing, initial, ignore_unexpected_children=True)
    java = plain_missing_leases(shards, [lease.key for lease in existing], initial)
    same = {(lease.key, lease.checkpoint) for lease in ours} == {(lease.key, lease.checkpoint) for lease in java}
    return _created(ours) + ("" if same else f"   (Java: {_created(java)})")


def _snapshot(shards: tuple[Shard, ...], initial: InitialPosition) -> tuple[Shard, ...]:
    """What the filtered listing of an empty table holds: the shards that were open at the position."""
    if initial.sentinel == TRIM_HORIZON:
        listed = {shard.shard_id for shard in shards}
        return tuple(shard for shard in shards if not shard.parents & listed)
    if initial.sentinel == AT_TIMESTAMP:
        at = initial.timestamp_s or 0.0
        return tuple(
            shard
            for shard in shards
            if int(shard.starting_sequence) <= at
            and (shard.ending_sequence is None or at <= int(shard.ending_sequence))
        )
    return tuple(shard for shard in shards if shard.is_open)


def _row(shards: tuple[Shard, ...], word: str) -> Lease:
    key = sid(int(word.rstrip("!")))
    checkpoint = SHARD_END if word.endswith("!") else TRIM_HORIZON
    shard = next((shard for shard in shards if shard.shard_id == key), None)
    if shard is None:
        return Lease(key, checkpoint)
    return Lease(key, checkpoint, parents=shard.parents, hash_range=shard.hash_range)


def _created(leases: tuple[Lease, ...]) -> str:
    if not leases:
        return "nothing"
    by_place: dict[str, list[Lease]] = {}
    for lease in leases:
        by_place.setdefault(str(lease.checkpoint), []).append(lease)
    return ", ".join(
        f"{' '.join(map(str, sorted(numbers(group))))} at {place}" for place, group in sorted(by_place.items())
    )


def taker_text(me: str, options: dict[str, str]) -> str:
    """What a taker would do; `options` are worker=leases, free=new leases, and priority=off, steals=n, max=n."""
    settings = rules(
        duration_s=LEASE_DURATION_S,
        held_max=int(options.pop("max", 2**31 - 1)),
        steals_max=int(options.pop("steals", "1")),
        very_old_first=options.pop("priority", "on") == "on",
    ).leases
    leases: list[Lease] = []
    for owner, count in options.items():
        leases += [
            Lease(sid(len(leases) + i), TRIM_HORIZON, owner=None if owner == "free" else owner)
            for i in range(int(count))
        ]
    seen: SeenCounters = Stillness()
    observe(seen, leases, NOW_S)
    plan = decide(leases, seen, me, NOW_S, Random(1), settings, even_shares=False)
    stolen = [choice.lease.owner for choice in plan.choices if choice.is_steal]
    taken = len(plan.choices) - len(stolen)
    act = f"steal {len(stolen)} from {stolen[0]}" if stolen else f"take {taken} free" if taken else "nothing"
    return f"target {plan.target}, needed {plan.needed}: {act}"


def filter_text(checkpoint: str, names: list[str]) -> str:
    """What a page holds for a child whose checkpoint is `checkpoint`; positions are written 7 or 7/1."""
    users = Counter(_position(name).sequence for name in names)
    records = [
        Record(b"x" if count == 1 else aggregate([User("key", b"x")] * count), "key", sequence, 0, 0)
        for sequence, count in users.items()
    ]
    batch = page_with(records).after(_position(checkpoint))
    delivered = " ".join(places(batch))
    return f"delivers {delivered}; a checkpoint may name up to {batch.largest}" if delivered else "delivers nothing"


def _position(text: str) -> Position:
    sequence, _, sub = text.partition("/")
    return Position(sequence, int(sub or 0))
