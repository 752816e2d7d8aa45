"""Random reshard histories, crash points and lost rows: sync and shard end always find back to full coverage.

A world of pure values: shards, rows, and what was processed. Its steps call the decisions exactly as the shells do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mld.core.positions import SHARD_END, InitialPosition, Position
from mld.core.streams import HASH_KEY_MAX, HashRange, Shard
from mld.leases.lease import Lease
from mld.shards.cleanup import Delete, judge_cleanup
from mld.shards.ending import BlockedOnMergeParent, Create, plan_shard_end
from mld.shards.graph import children_in
from mld.shards.identity import ShardIsOver
from mld.tracking.parents import blocking_parent
from tests.unit.shards.twins import (
    FROM_HORIZON,
    FROM_LATEST,
    FROM_TIMESTAMP,
    foreign_evidence,
    judge_missing_shard,
    leases_for_empty_table,
    missing_leases,
    sid,
)

DRAIN_ROUNDS_MAX = 200
SOMETIMES = 10**6  # a crash point beyond every step: no crash


@dataclass
class World:
    initial: InitialPosition
    shards: dict[str, Shard] = field(default_factory=dict)
    rows: dict[str, Lease] = field(default_factory=dict)
    processed: set[str] = field(default_factory=set)
    trimmed: set[str] = field(default_factory=set)
    now: int = 100

    def add(self, keys: HashRange, *parents: str) -> None:
        names = [*parents, None, None]
        shard_id = sid(len(self.shards))
        self.shards[shard_id] = Shard(shard_id, keys, str(self.now), None, names[0], names[1])

    def close(self, shard: Shard) -> None:
        self.shards[shard.shard_id] = replace(shard, ending_sequence=str(self.now - 1))

    @property
    def listing(self) -> tuple[Shard, ...]:
        return tuple(s for s in self.shards.values() if s.shard_id not in self.trimmed)

    @property
    def open_shards(self) -> list[Shard]:
        return sorted((s for s in self.shards.values() if s.is_open), key=lambda s: s.hash_range.start)

    def split(self, pick: int) -> None:
        shard = self.open_shards[pick % len(self.open_shards)]
        middle = (shard.hash_range.start + shard.hash_range.end) // 2
        self.close(shard)
        self.add(HashRange(shard.hash_range.start, middle), shard.shard_id)
        self.add(HashRange(middle + 1, shard.hash_range.end), shard.shard_id)

    def merge(self, pick: int) -> None:
        if len(self.open_shards) > 1:
            at = pick % (len(self.open_shards) - 1)
            left, right = self.open_shards[at : at + 2]
            self.close(left)
            self.close(right)
            self.add(HashRange(left.hash_range.start, right.hash_range.end), left.shard_id, right.shard_id)

    def sync(self, crash_after: int = SOMETIMES) -> None:
        assert foreign_evidence(self.listing, list(self.rows.values())) is None
        if self.rows:
            made = missing_leases(self.listing, list(self.rows.values()), self.initial)
        elif self.initial == FROM_HORIZON:
            oldest = [s for s in self.listing if not any(p not in self.trimmed for p in s.parents)]
            made = leases_for_empty_table(oldest, self.initial)
        else:
            made = leases_for_empty_table(self.open_shards, self.initial)
        for lease in made[:crash_after]:
            assert lease.key not in self.rows
            self.check_not_below_an_unread_shard(lease)
            self.rows[lease.key] = lease

    def check_not_below_an_unread_shard(self, lease: Lease) -> None:
        if self.initial == FROM_HORIZON:
            for parent in lease.parents - self.trimmed:
                assert parent in self.processed or parent in self.rows, f"{lease.key} is below unread {parent}"

    def runnable(self) -> list[Lease]:
        rows = list(self.rows.values())
        return [r for r in rows if not r.is_complete and blocking_parent(r, self.rows) is None]

    def start(self, lease: Lease) -> None:
        """The consumer delivers at least one record of the shard."""
        if self.initial == FROM_HORIZON:
            unread = {a for a in self.ancestors(lease.key) if a not in self.processed and a not in self.trimmed}
            assert not unread, f"{lease.key} starts before {unread}"
        if lease.checkpoint.number is None:
            first = Position(self.shards[lease.key].starting_sequence)
            self.rows[lease.key] = replace(lease, checkpoint=first)

    def ancestors(self, shard_id: str) -> set[str]:
        found: set[str] = set()
        todo = [shard_id]
        while todo:
            for parent in self.shards[todo.pop()].parents - found:
                found.add(parent)
                todo.append(parent)
        return found

    def end(self, lease: Lease, crash_after: int = SOMETIMES) -> None:
        shard = self.shards[lease.key]
        if shard.is_open:
            return
        if lease.key in self.trimmed:
            if isinstance(judge_missing_shard(lease, list(self.rows.values()), self.listing), ShardIsOver):
                self.sync(crash_after)
                if crash_after == SOMETIMES:
                    self.rows[lease.key] = replace(self.rows[lease.key], checkpoint=SHARD_END)
            return
        self.start(lease)
        self.processed.add(lease.key)
        children = children_in(self.shards.values(), lease.key)
        named = children[0].parents
        plan = plan_shard_end(
            lease,
            children,
            named & self.rows.keys(),
            child_row_present=children[0].shard_id in self.rows,
            trimmed=named & self.trimmed,
        )
        if isinstance(plan, BlockedOnMergeParent):
            self.sync(crash_after)
            return
        assert isinstance(plan, Create)
        for child in plan.leases[:crash_after]:
            self.rows.setdefault(child.key, child)
        if crash_after > len(plan.leases):
            names = frozenset(child.key for child in plan.leases)
            self.rows[lease.key] = replace(self.rows[lease.key], children=names)
        if crash_after > len(plan.leases) + 1:
            self.rows[lease.key] = replace(self.rows[lease.key], checkpoint=SHARD_END)

    def clean(self, lease: Lease) -> None:
        if isinstance(judge_cleanup(lease, self.rows, completed_due=True), Delete):
            del self.rows[lease.key]

    def trim(self) -> None:
        """Everything closed leaves retention, oldest generations first, except the youngest closed shards."""
        closed = sorted((s for s in self.listing if not s.is_open), key=lambda s: int(s.ending_sequence or 0))
        for shard in closed[: (len(closed) + 1) // 2]:
            self.trimmed.add(shard.shard_id)

    def lose_row(self, pick: int, *, unfinished_only: bool) -> None:
        """Somebody deletes a row by hand."""
        leaves = [
            key
            for key, lease in self.rows.items()
            if not unfinished_only
            or (
                not lease.is_complete
                and not any(c.shard_id in self.rows for c in children_in(self.shards.values(), key))
            )
        ]
        if len(leaves) > 1:  # the last row gone would be a new application
            del self.rows[leaves[pick % len(leaves)]]

    def drain(self) -> None:
        """What the fleet does when nothing goes wrong any more, until nothing changes."""
        for _ in range(DRAIN_ROUNDS_MAX):
            before = dict(self.rows)
            self.sync()
            for lease in self.runnable():
                self.start(lease)
            for lease in self.runnable():
                self.end(lease)
            if self.rows == before:
                return
        raise AssertionError("no end of changes")


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["split", "merge", "sync", "start", "end", "end", "clean", "clean", "lose", "trim"]),
        st.integers(0, 1000),
        st.sampled_from([SOMETIMES, SOMETIMES, 0, 1, 2, 3]),
    ),
    max_size=40,
)


def _live(
    world: World, roots: int, steps: Sequence[tuple[str, int, int]], *, without: frozenset[str], gentle: bool
) -> None:
    width = (HASH_KEY_MAX + 1) // roots
    for i in range(roots):
        world.add(HashRange(i * width, HASH_KEY_MAX if i == roots - 1 else (i + 1) * width - 1))
    world.sync(steps[0][2] if steps else SOMETIMES)
    for step, pick, crash_after in steps:
        world.now += 10
        rows = sorted(world.rows.values(), key=lambda lease: lease.key)
        runnable = world.runnable()
        if step in without:
            continue
        match step:
            case "split":
                world.split(pick)
            case "merge":
                world.merge(pick)
            case "sync":
                world.sync(crash_after)
            case "start" if runnable:
                if runnable[pick % len(runnable)].key not in world.trimmed:
                    world.start(runnable[pick % len(runnable)])
            case "end" if runnable:
                world.end(runnable[pick % len(runnable)], crash_after)
            case "clean" if rows:
                world.clean(rows[pick % len(rows)])
            case "lose":
                world.lose_row(pick, unfinished_only=gentle)
            case "trim":
                world.trim()
            case _:
                pass


@settings(max_examples=200)
@given(st.integers(1, 4), STEPS)
def test_from_the_trim_horizon_every_shard_is_read_once_its_ancestors_were(
    roots: int, steps: list[tuple[str, int, int]]
) -> None:
    # Rows of unfinished shards get lost, workers crash in the middle of a sync or of a shard's end.
    world = World(FROM_HORIZON)
    _live(world, roots, steps, without=frozenset({"trim"}), gentle=True)

    world.drain()

    for shard in world.shards.values():
        assert shard.shard_id in (world.rows if shard.is_open else world.processed)


@settings(max_examples=200)
@given(st.sampled_from([FROM_HORIZON, FROM_LATEST, FROM_TIMESTAMP]), st.integers(1, 4), STEPS)
@example(
    FROM_HORIZON,
    2,
    [(step, pick, SOMETIMES) for step, pick in (("merge", 0), ("split", 0), ("end", 0), ("lose", 1), ("end", 0))]
    + [("lose", 1, SOMETIMES)] * 2,
)
def test_every_open_shard_gets_a_lease_whatever_row_is_lost(
    initial: InitialPosition, roots: int, steps: list[tuple[str, int, int]]
) -> None:
    # Any row may vanish here, so order and completeness cannot be promised: coverage can.
    world = World(initial)
    world.start = lambda lease: None  # type: ignore[method-assign]
    world.check_not_below_an_unread_shard = lambda lease: None  # type: ignore[method-assign]
    _live(world, roots, steps, without=frozenset({"trim"}), gentle=False)

    world.drain()

    assert {s.shard_id for s in world.open_shards} <= world.rows.keys()


@settings(max_examples=200)
@given(st.sampled_from([FROM_HORIZON, FROM_LATEST]), st.integers(1, 4), STEPS)
def test_every_open_shard_gets_a_lease_after_shards_left_retention(
    initial: InitialPosition, roots: int, steps: list[tuple[str, int, int]]
) -> None:
    world = World(initial)
    _live(world, roots, steps, without=frozenset({"lose"}), gentle=True)

    world.drain()

    uncovered = {s.shard_id for s in world.open_shards} - world.rows.keys()
    # A shard may still wait for an ancestor whose row is parked, never for nothing.
    for shard_id in uncovered:
        assert any(a in world.rows and not world.rows[a].is_complete for a in world.ancestors(shard_id))
