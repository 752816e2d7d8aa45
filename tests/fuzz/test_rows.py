"""A slice of the fuzz of rows; the long run is `python -m tests.fuzz.rows`."""

from __future__ import annotations

import pytest

from tests.fuzz.rows import (
    LEASE,
    check_fleet,
    check_lease,
    check_row,
    check_streams,
    decoded,
    fleets,
    lists,
    one_row,
    run,
)
from tests.support.tiers import sliced

EXAMPLES = 200
FLEETS = 3
LISTS = 8


def test_a_row_that_anybody_may_have_written_is_read_or_named_as_corrupt() -> None:
    run(EXAMPLES, one_row, check_row, derandomize=True)


def test_a_fleet_goes_on_beside_rows_that_anybody_may_have_written() -> None:
    run(FLEETS, fleets, check_fleet, derandomize=True)


def test_a_fleet_of_several_streams_goes_on_and_mends_whatever_stands_in_its_list() -> None:
    run(LISTS, lists, check_streams, derandomize=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughputKBps", {"N": "1E+22"}),
        ("checkpoint", {"S": "9" * 5000}),
        ("pendingCheckpoint", {"S": "9" * 5000}),
        ("checkpointSubSequenceNumber", {"N": "9" * 5000}),
        ("checkpointSubSequenceNumber", {"S": "9" * 5000}),
        ("pendingCheckpointSubSequenceNumber", {"N": "9" * 5000}),
        ("startingHashKey", {"S": "9" * 5000}),
        ("checkpointSubSequenceNumber", {"N": "1E+39"}),
        ("leaseCounter", {"N": "9" * 38}),
        ("endingHashKey", {"S": "9" * 5000}),
    ],
)
@pytest.mark.parametrize("mode", sliced(["2x", "3x"], "3x"))
def test_a_fleet_goes_on_beside_the_rows_that_once_ended_daemons(name: str, value: dict[str, str], mode: str) -> None:
    row = {**LEASE, name: value}
    check_lease(decoded(row))
    check_fleet((mode, [{**row, "checkpointOwner": {"S": "w9"}}], True))
