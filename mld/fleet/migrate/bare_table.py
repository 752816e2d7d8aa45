"""Recognizes *bare* lease tables: tables with leases but no other rows of a fleet, so that KCL 2.x may use them. Pure.

Rule: coordination#bare-tables. KCL 2.x takes every row for a lease. A row without a counter makes its listing of the
table fail, so that no worker of 2.x can start, take a lease or list shards any more. A fleet of 3.x writes the row
`Migration3.0` before it creates a lease. So if a table is bare, it never belonged to a fleet of 3.x, or its other rows
were removed since, so that 2.x can use it. A row that a person has added does not show that a table belongs to a fleet
of 3.x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mld.leases import rows
from mld.leases.own_attribute import Row
from mld.leases.rows import EntityType
from mld.properties.values import ClientVersionConfig

ATTRIBUTES = (rows.KEY, rows.COUNTER, rows.OWNER, rows.ENTITY_TYPE)
"""The attributes from which an outline is made."""
OWNERS_NAMED_MAX = 5
_KINDS = {kind.value for kind in EntityType} - {EntityType.LEASE.value}
_OURS = "mld"
"""Prefix of the keys of rows that only mld writes."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A short form of a lease table's contents. `leases` has the owner and the counter of each lease, as texts, by
    key.
    """

    leases: Mapping[str, tuple[str, str]]
    is_bare: bool
    is_of_2x: bool
    """Whether the table is bare, and a lease in it has no `entityType`. Then a worker from before KCL 3.5 created that
    lease, or a worker of mld that expected such workers.
    """


def outline(found: Iterable[Row]) -> Outline:
    """Return the outline of a table with these rows. Leases without a counter are left out. Of the other rows only
    those count that belong to a fleet: their type is one of a fleet's rows, or their key begins with `mld`.
    """
    leases, has_untyped, has_others = {}, False, False
    for row in found:
        key = str(row[rows.KEY]["S"])
        if not rows.is_lease(row):
            has_others |= row[rows.ENTITY_TYPE].get("S") in _KINDS or key.startswith(_OURS)
        elif rows.COUNTER in row:
            has_untyped |= rows.ENTITY_TYPE not in row
            owner, counter = row.get(rows.OWNER, {}).get("S", ""), row[rows.COUNTER].get("N", "")
            leases[key] = (str(owner), str(counter))
    is_bare = bool(leases) and not has_others
    return Outline(leases, is_bare, is_bare and has_untyped)


def movers(before: Outline, after: Outline) -> tuple[str, ...]:
    """Return the workers that live, sorted: those that own a lease that changed between two outlines."""
    moved = {after.leases[key][0] for key, seen in before.leases.items() if after.leases.get(key, seen) != seen}
    return tuple(sorted(moved - {""}))


def refusal(configured: ClientVersionConfig, living: tuple[str, ...]) -> str:
    """Return why a worker that is set to 3.x refuses to start: the workers `living` use the bare table."""
    named = ", ".join(living[:OWNERS_NAMED_MAX]) + (", ..." if len(living) > OWNERS_NAMED_MAX else "")
    return (
        f"clientVersionConfig={configured.value}, but workers use this lease table by the rules of KCL 2.x: {named}. "
        "The rows of a 3.x fleet would stop KCL 2.x from reading the table. Stop those workers first; or remove "
        "clientVersionConfig, and this worker shares the leases with them; or migrate in steps (docs/use/fleets.md)"
    )
