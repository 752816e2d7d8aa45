"""Which cases of a promise `make test` runs, and which only `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sliced(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Give `values` for `parametrize`; those that are not `kept` are marked `full`.

    Raises:
        AssertionError: something is kept that is no value.
    """
    values = list(values)
    assert all(value in values for value in kept), f"of {kept} not all are in {values}"
    return [value if value in kept else pytest.param(value, marks=pytest.mark.full) for value in values]


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """Give `cases` of `pytest.param` for `parametrize`; all but the first of each `number` are marked `full`."""
    return [
        case if at % number == 0 else pytest.param(*case.values, id=case.id, marks=pytest.mark.full)
        for at, case in enumerate(cases)
    ]
