"""Which seed catches which variant. Written by `python -m tests.simulation.variants record`."""

from tests.simulation.variants.hunting import Catch

CATCHES: dict[str, Catch] = {}
