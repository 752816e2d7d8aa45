"""The orders of a web shop as writes to a table, and the changes that its stream must then tell. Pure.

Equal seeds and starts give equal writes. Some writes change nothing, and a stream has no record of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

KEY = "order_id"
STATES = ("NEW", "PAID", "PACKED", "SHIPPED", "DELIVERED")
_OPEN_ORDERS = 400
"""So many orders are under way once the shop is busy."""
_NEW = 0.5
"""Share of the writes that are new orders, until then."""
_NOTHING_NEW = 0.05
"""Share of the writes that say again what is already there."""

DynamoItem = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OrderWrite:
    """One write: the whole item afterwards; None deletes it. `is_update`: its status alone is set."""

    key: str
    item: DynamoItem | None
    is_update: bool = False


@dataclass(frozen=True, slots=True)
class OrderChange:
    """One record of the stream, as far as it can be foretold."""

    event: str
    old: DynamoItem | None
    new: DynamoItem | None


@dataclass(frozen=True, slots=True)
class SeenChange:
    """One record as a processor left it."""

    key: str
    sequence: int
    change: OrderChange


def order_writes(count: int, *, seed: int) -> Iterator[OrderWrite]:
    """`count` writes in order: orders come, move through the `STATES`, and are deleted once they are delivered."""
    rng = Random(seed)
    orders: dict[str, dict[str, Any]] = {}
    made = 0
    for _ in range(count):
        if not orders or (len(orders) < _OPEN_ORDERS and rng.random() < _NEW):
            made += 1
            key = f"order-{made:05d}"
            orders[key] = {
                KEY: {"S": key},
                "customer": {"S": f"customer-{rng.randrange(500):03d}"},
                "amount": {"N": f"{rng.randrange(500, 50_000) / 100:.2f}".rstrip("0").rstrip(".")},
                "status": {"S": STATES[0]},
            }
            yield OrderWrite(key, dict(orders[key]))
            continue
        key = rng.choice(list(orders))
        if rng.random() < _NOTHING_NEW:
            yield OrderWrite(key, dict(orders[key]))
            continue
        state = STATES.index(orders[key]["status"]["S"])
        if state + 1 == len(STATES):
            del orders[key]
            yield OrderWrite(key, None)
        else:
            orders[key]["status"] = {"S": STATES[state + 1]}
            yield OrderWrite(key, dict(orders[key]), is_update=True)


def expected_changes(writes: Iterable[OrderWrite]) -> dict[str, list[OrderChange]]:
    """What the stream tells of each order, in order."""
    table: dict[str, DynamoItem] = {}
    changes: dict[str, list[OrderChange]] = {}
    for write in writes:
        old = table.pop(write.key, None)
        if write.item is not None:
            table[write.key] = write.item
        if old == write.item:
            continue
        event = "INSERT" if old is None else "REMOVE" if write.item is None else "MODIFY"
        changes.setdefault(write.key, []).append(OrderChange(event, old, write.item))
    return changes


def seen_change(sequence: int, data: str) -> SeenChange:
    """A record from its data, the JSON that a child gets. Raises ValueError and KeyError for other data."""
    record = json.loads(data)
    told = record["dynamodb"]
    change = OrderChange(record["eventName"], told.get("OldImage"), told.get("NewImage"))
    return SeenChange(told["Keys"][KEY]["S"], sequence, change)


def find_faults(
    where: str, wanted: Mapping[str, Sequence[OrderChange]], found: Iterable[SeenChange], *, in_order: bool
) -> list[str]:
    """One sentence per order that is not as it should be; empty if all is there, once and in order.

    `found` is in the order in which the processor left it if `in_order`; else the sequence numbers tell the order."""
    by_key: dict[str, list[SeenChange]] = {}
    for one in found:
        by_key.setdefault(one.key, []).append(one)
    faults = []
    for key in sorted(wanted.keys() | by_key.keys()):
        seen = by_key.get(key, [])
        ordered = sorted(seen, key=lambda one: one.sequence)
        if len({one.sequence for one in seen}) != len(seen):
            faults.append(f"{where}: {key} has a change more than once")
        elif in_order and seen != ordered:
            faults.append(f"{where}: the changes of {key} are out of order")
        elif [one.change for one in ordered] != list(wanted.get(key, ())):
            events = " ".join(one.change.event for one in ordered) or "nothing"
            told = " ".join(change.event for change in wanted.get(key, ())) or "nothing"
            faults.append(f"{where}: {key} has {events}, and should have {told}, with other images perhaps")
    return faults


def last_numbers(shards: Mapping[str, Sequence[SeenChange]]) -> dict[str, int]:
    """By shard, its last sequence number; shards without changes are left out."""
    return {shard: max(one.sequence for one in seen) for shard, seen in shards.items() if seen}


def checkpoint_faults(last: Mapping[str, int], checkpoints: Mapping[str, int | None]) -> list[str]:
    """One sentence for each shard whose checkpoint is not at its last change. `checkpoints` are those of shards that
    are not finished."""
    return [
        f"{shard}: the checkpoint is {checkpoints[shard]}, and the last change is {last[shard]}"
        for shard in sorted(last.keys() & checkpoints.keys())
        if checkpoints[shard] != last[shard]
    ]
