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
