"""What a variant is."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.variants.patching import Patch


@dataclass(frozen=True, slots=True)
class Variant:
    """`breaks` says in one sentence what goes wrong in the daemon."""

    name: str
    breaks: str
    patches: tuple[Patch, ...]
    needs: str
    """The rare combination of faults that its test puts into the drawn plan several times."""
    mode: str = "2x"
    """The family of its plans (`world.modes`)."""
