"""Settings for tests of one part: those that an empty file means, but for some fields."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

from mld.properties.settings import FleetSettings, LeaseSettings, Settings
from tests.support.fleet import settings_of

GROUPS = {"leases": LeaseSettings, "fleet": FleetSettings}


@cache
def defaults() -> Settings:
    return settings_of(clientVersionConfig="")


def rules(**changes: Any) -> Settings:
    """The defaults with these fields of the groups `leases` and `fleet`."""
    found = defaults()
    for group, kind in GROUPS.items():
        own = {field.name: changes.pop(field.name) for field in fields(kind) if field.name in changes}
        found = replace(found, **{group: replace(getattr(found, group), **own)})
    assert not changes, f"no such fields: {changes}"
    return found


def taking(*, even_shares: bool = False, **changes: Any) -> dict[str, Any]:
    """What a taker goes by: these settings, and even shares or Java's."""
    return {"settings": rules(**changes).leases, "even_shares": even_shares}
