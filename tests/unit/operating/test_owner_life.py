"""Which owners an operator takes for alive, by several looks at the tables: rows that come and go between two looks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mld.core.clock import LoopClock
from mld.core.positions import Position
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from mld.operating.owner_life import LOOKS_PER_LEASE, Observed, living
from mld.operating.plan import Row, raw_table
from tests.virtual_time import run_virtual

LEASE_S = 10.0
Leases = Mapping[str, tuple[str | None, int]]
"""Owner and counter by lease key."""
DEAD: Leases = {"a": ("dead", 5), "b": ("dead", 9)}


def seen(leases: Leases, reports: Mapping[str, int] | None = None) -> Observed:
    rows: list[Row] = []
    for key, (owner, counter) in leases.items():
        row = {**new_row(Lease(key, Position("1"))), "leaseCounter": {"N": str(counter)}}
        rows.append(row if owner is None else {**row, "leaseOwner": {"S": owner}})
    told = {worker: {"wid": {"S": worker}, "lut": {"N": str(at)}} for worker, at in (reports or {}).items()}
    return Observed(raw_table(rows), tuple(told.values()))


def watched(*looks: Observed, idle_report_s: float | None = None) -> tuple[set[str], float]:
    """The living workers, and how long it took to tell; the last look lasts."""

    async def watch() -> tuple[set[str], float]:
        left, clock = list(looks[1:]), LoopClock()
        began_s = clock.monotonic()

        async def look() -> Observed:
            return left.pop(0) if len(left) > 1 else left[0]

        return await living(look, looks[0], clock, LEASE_S, idle_report_s=idle_report_s), clock.monotonic() - began_s

    return run_virtual(watch())


@pytest.mark.parametrize(
    ("case", "looks"),
    [
        ("nothing changes", [DEAD, DEAD]),
        ("missing once", [DEAD, {"b": ("dead", 9)}, DEAD]),
        ("missing from the first look", [{"b": ("dead", 9)}, DEAD]),
        ("all missing, then back", [DEAD, {}, DEAD]),
        ("gone for good", [DEAD, {"b": ("dead", 9)}]),
        ("given back by nobody who can be asked", [DEAD, {**DEAD, "a": (None, 5)}]),
    ],
)
def test_a_row_that_was_missing_from_a_look_is_no_sign_of_life(case: str, looks: list[Leases]) -> None:
    alive, within_s = watched(*map(seen, looks))
    assert alive == set(), case
    assert LEASE_S < within_s < 2.5 * LEASE_S


@pytest.mark.parametrize(
    ("case", "looks"),
    [
        ("renewed", [DEAD, {**DEAD, "a": ("w1", 6)}]),
        ("renewed while it was missing", [{**DEAD, "a": ("w1", 5)}, {}, {**DEAD, "a": ("w1", 6)}]),
        ("taken from a dead one, with the same counter", [DEAD, {**DEAD, "a": ("w1", 5)}]),
        ("taken, for it was nobody's", [{**DEAD, "a": (None, 5)}, {**DEAD, "a": ("w1", 6)}]),
        ("new, and then renewed", [DEAD, {**DEAD, "c": ("w1", 1)}, {**DEAD, "c": ("w1", 2)}]),
        ("new at the last moment", [*[DEAD] * LOOKS_PER_LEASE, {**DEAD, "c": ("w1", 1)}, {**DEAD, "c": ("w1", 2)}]),
    ],
)
def test_a_row_that_moves_is_a_sign_of_life_of_its_owner(case: str, looks: list[Leases]) -> None:
    assert watched(*map(seen, looks))[0] == {"w1"}, case


@pytest.mark.parametrize(
    ("case", "reports", "alive"),
    [
        ("unchanged", [{"w1": 7}, {"w1": 7}], set()),
        ("missing once", [{"w1": 7}, {}, {"w1": 7}], set()),
        ("new from a worker with leases", [{}, {"dead": 7}], set()),
        ("again from a worker without", [{"w1": 7}, {}, {"w1": 8}], {"w1"}),
        ("again from a worker with leases", [{}, {"dead": 7}, {"dead": 8}], {"dead"}),
    ],
)
def test_a_report_is_a_sign_of_life_if_it_is_another_than_before(
    case: str, reports: list[dict[str, int]], alive: set[str]
) -> None:
    base_s = int(LoopClock().wall())
    looks = [seen(DEAD, {one: base_s + at for one, at in told.items()}) for told in reports]
    assert watched(*looks, idle_report_s=30.0)[0] == alive, case
