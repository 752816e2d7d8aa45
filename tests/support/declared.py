"""The attributes that mld adds to the rows of its tables: all that any module declares, whoever adds one."""

from __future__ import annotations

import gc
import importlib
from functools import lru_cache

from mld.leases.own_attribute import OwnAttribute
from tests.support.servers import ROOT


@lru_cache(maxsize=1)
def own_attributes() -> tuple[OwnAttribute[object], ...]:
    """All of them, by name and kind of row."""
    for path in sorted((ROOT / "mld").rglob("*.py")):
        if "OwnAttribute" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found = [one for one in gc.get_objects() if isinstance(one, OwnAttribute)]
    return tuple(sorted(found, key=lambda one: (one.name, str(one.example))))
