"""Checks that the top-level packages next to `mld` are ours: their names are common, and another one may come first.

`protocol`, `properties` and `processors` sit at the top level by the project's agreed layout.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from mld.errors import ImportedSiblingError

_SIBLINGS = ("protocol", "properties", "processors")


def check_siblings() -> None:
    """Raise ImportedSiblingError if a sibling would come from another directory than `mld`'s."""
    home = Path(__file__).resolve().parent.parent
    for name in _SIBLINGS:
        spec = importlib.util.find_spec(name)
        places = [Path(p).resolve() for p in (spec.submodule_search_locations or [])] if spec else []
        if home / name not in places:
            found = places[0] if places else "nowhere"
            raise ImportedSiblingError(
                f"the package {name!r} is expected in {home} but is found in {found}: another package of that name "
                "comes first on the Python path; run bin/mld, or remove the other one from PYTHONPATH"
            )
