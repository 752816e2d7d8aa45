"""A *bare* lease table has leases and no other row of a fleet: KCL 2.x may use it, and may come back to it. Pure.

Rule: coordination#bare-tables. KCL 2.x takes every row for a lease. One that has no counter makes it fail to list the
table, so that no worker of it starts, takes a lease or lists shards any more. A fleet of 3.x writes the row
`Migration3.0` before it makes a lease, so a bare table was never one of 3.x, or is one no more. A row that some person
put there proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mld.leases import rows
from mld.leases.own_attribute import Row
from mld.leases.rows import EntityType
from mld.properties.values import ClientVersionConfig

ATTRIBUTES = (rows.KEY, rows.COUNTER, rows.OWNER, rows.ENTITY_TYPE)
"""All that an outline is made of."""
OWNERS_NAMED_MAX = 5
_KINDS = {kind.value for kind in EntityType} - {EntityType.LEASE.value}
_OURS = "mld"
"""What the keys of rows begin with that only mld has."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What a lease table consists of: owner and counter of each lease, both as text."""

    leases: Mapping[str, tuple[str, str]]
    is_bare: bool
    is_of_2x: bool
    """Bare, and a worker from before KCL 3.5 has made a lease in it, or one of ours that expected such workers."""


def outline(found: Iterable[Row]) -> Outline:
    """Return the outline of these rows."""
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
    """Return the workers whose leases have changed in between, sorted."""
    moved = {after.leases[key][0] for key, seen in before.leases.items() if after.leases.get(key, seen) != seen}
    return tuple(sorted(moved - {""}))


def refusal(configured: ClientVersionConfig, living: tuple[str, ...]) -> str:
    """Return why a worker set to 3.x does not start beside living workers that use a bare table."""
    named = ", ".join(living[:OWNERS_NAMED_MAX]) + (", ..." if len(living) > OWNERS_NAMED_MAX else "")
    return (
        f"clientVersionConfig={configured.value}, but workers use this lease table by the rules of KCL 2.x: {named}. "
        "The rows of a 3.x fleet would stop KCL 2.x from reading the table. Stop those workers first; or remove "
        "clientVersionConfig, and this worker shares the leases with them; or migrate in steps (docs/use/fleets.md)"
    )
