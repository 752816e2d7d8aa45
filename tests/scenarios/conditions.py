"""What a story can expect or wait for."""

from __future__ import annotations

from collections.abc import Callable

from mld.core.positions import Position
from mld.fleet.leader.lock import LOCK_KEY
from mld.fleet.migrate.states import CLIENT_VERSION, TABLE_MIGRATION
from mld.leases.lease import Lease
from tests.scenarios.naming import full, numbers, readable
from tests.scenarios.world import Record, StoryError, StoryWorld

Condition = Callable[[], bool]

CONDITIONS = """\
  delivered [#3..#7]: every record that the application wants, or these, reached a child at least once
  nothing delivered #3..#7, nothing delivered twice
  caught-up: delivered, and covered by checkpoints
  held [by w1], shard-0 held by w1: a running worker believes that it holds the lease, or all of them
  balanced: everything is held, and the loads of the running workers differ by at most one
  shard-0 at SHARD_END, shard-0 at #7: the checkpoint
  row shard-0, no row shard-0: whether the lease table has it
  leader w1, leader other than w1, no leader, version CLIENT_VERSION_3X, tables DEPLOYED: what the rows of the fleet say
  ended w1, children 2: worker w1 is not running; two children live"""


def place(world: StoryWorld, row: Lease) -> str:
    """A row's checkpoint as a story shows it."""
    return readable(str(row.checkpoint), world.number_of)


def condition(world: StoryWorld, words: list[str]) -> Condition:
    """The condition these words mean. Raises StoryError."""
    rows = world.rows
    match words:
        case ["delivered"]:
            return lambda: all(r.delivered_at_s is not None for r in world.records if r.wanted)
        case ["delivered", span]:
            return lambda: all(world.records[n].delivered_at_s is not None for n in numbers(span))
        case ["nothing", "delivered", "twice"]:
            return lambda: all(r.deliveries < 2 for r in world.records)
        case ["nothing", "delivered", span]:
            return lambda: all(world.records[n].delivered_at_s is None for n in numbers(span))
        case ["caught-up"]:
            return lambda: _is_caught_up(world)
        case ["held"]:
            return lambda: bool(world.row_keys()) and all(world.holders().values())
        case ["held", "by", name]:
            return lambda: bool(world.row_keys()) and all(name in holders for holders in world.holders().values())
        case [shard, "held", "by", name]:
            return lambda: name in world.holders().get(full(shard), ())
        case ["balanced"]:
            return lambda: _is_balanced(world)
        case [shard, "at", wanted]:
            return lambda: (row := rows().get(full(shard))) is not None and place(world, row) == wanted
        case ["row", shard]:
            return lambda: full(shard) in world.row_keys()
        case ["no", "row", shard]:
            return lambda: full(shard) not in world.row_keys()
        case ["leader", name]:
            return lambda: world.fleet_row(LOCK_KEY).get("ownerName") == {"S": name}
        case ["leader", "other", "than", name]:
            return lambda: world.fleet_row(LOCK_KEY).get("ownerName", {"S": name}) != {"S": name}
        case ["no", "leader"]:
            return lambda: not world.fleet_row(LOCK_KEY)
        case ["version", name]:
            return lambda: world.fleet_row(CLIENT_VERSION.key).get("cv") == {"S": name}
        case ["tables", status]:
            return lambda: world.fleet_row(TABLE_MIGRATION.key).get("tm") == {"S": f"TABLE_MIGRATION_STATUS_{status}"}
        case ["ended", name]:
            return lambda: not world.machines[name].is_up
        case ["children", count]:
            return lambda: sum(life.living for life in world.troupe.lives) == int(count)
    raise StoryError(f"no such condition: {' '.join(words)!r}")


def _is_caught_up(world: StoryWorld) -> bool:
    rows = world.rows()
    for record in world.records:
        row = rows.get(record.shard_id)
        if not record.wanted or (record.delivered_at_s is not None and record.shard_id not in rows):
            continue
        if row is None or not (row.is_complete or _covers(row.checkpoint, record)):
            return False
    return True


def _covers(checkpoint: Position, record: Record) -> bool:
    return (checkpoint.number or 0, checkpoint.sub) >= (record.sequence, record.sub)


def _is_balanced(world: StoryWorld) -> bool:
    loads = {name: 0 for name, machine in world.machines.items() if machine.state == "running"}
    for holders in world.holders().values():
        if len(holders) != 1:
            return False
        loads[holders[0]] += 1
    return max(loads.values()) - min(loads.values()) <= 1
