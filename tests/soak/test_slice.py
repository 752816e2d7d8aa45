"""A short soak with every change; the long one is `make soak`."""

from __future__ import annotations

import logging

import pytest

from tests.soak.wire import run

CALLS = 3_000


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_thousands_of_calls_to_a_server_that_does_everything_wrong(tls: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="mld")
    counts = run(CALLS, seed=2, tls=tls)
    assert counts.total() == CALLS
    assert counts["answered"] > CALLS / 4
    assert counts["refused"] and counts["unanswered"]
