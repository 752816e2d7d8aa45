"""The checkers bite: every deliberately broken variant of the daemon is caught by a recorded seed.

If a variant is no longer caught because the world has changed: `python -m tests.simulation.variants record`. If that
finds nothing either, the bed has a hole.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.run import run_plan
from tests.simulation.shrink import kind_of
from tests.simulation.variants.catalog import BY_NAME, VARIANTS
from tests.simulation.variants.hunting import plan_of, run_broken
from tests.simulation.variants.patching import Patch, PatchError, patched
from tests.simulation.variants.seeds import CATCHES

FIRSTS = {catches[0].kind: name for name, catches in reversed(CATCHES.items())}
"""One variant for each checker, which is what `make test` runs."""


def variant(name: str, *case: object) -> Any:
    return pytest.param(*case, marks=() if name in FIRSTS.values() else pytest.mark.full)


PLANS = {(catches[0].seed, BY_NAME[name].needs, BY_NAME[name].mode): name for name, catches in CATCHES.items()}


@pytest.mark.parametrize("name", [variant(name, name) for name in BY_NAME])
def test_a_broken_variant_is_caught(name: str) -> None:
    violations = []
    for catch in CATCHES[name]:
        violations.append(run_broken(BY_NAME[name], catch.seed).violation)
        if kind_of(violations[-1]) == catch.kind:
            return
    pytest.fail(f"survives, or is seen by another checker: {violations}")


@pytest.mark.full
@pytest.mark.parametrize("seed, needs, mode", sorted(PLANS))
def test_the_same_plan_passes_unbroken(seed: int, needs: str, mode: str) -> None:
    assert run_plan(plan_of(seed, needs, mode)).violation == ""


def test_variants_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(VARIANTS) == len(CATCHES)


def test_a_patch_that_does_not_fit_fails_loudly() -> None:
    with pytest.raises(PatchError, match="0 times"), patched((Patch("mld.leases.writes", "no such line", ""),)):
        pass


def test_a_patch_is_undone() -> None:
    from mld.leases.validity import retry_delay_s

    before = retry_delay_s.__code__
    with patched(BY_NAME["retries_without_delay"].patches):
        assert retry_delay_s.__code__ is not before
    assert retry_delay_s.__code__ is before


def test_the_methods_of_a_port_can_be_patched() -> None:
    import inspect

    from mld.leases.dynamodb import DynamoLeaseTable

    method = inspect.unwrap(DynamoLeaseTable.apply)
    before = method.__code__
    with patched((Patch("mld.leases.dynamodb", "await self._send(write)", "await self._send(None)"),)):
        assert method.__code__ is not before
    assert method.__code__ is before
