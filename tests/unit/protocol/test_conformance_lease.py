"""The lease of an examination refuses what the daemon refuses."""

from __future__ import annotations

import pytest

from mld.protocol.conformance.session import ExaminedLease
from mld.protocol.messages import CheckpointErrorName, CheckpointRequest, Record


def lease_at(sequence: str) -> ExaminedLease:
    lease = ExaminedLease("TRIM_HORIZON")
    lease.deliver(Record(b"", "key", sequence, 0, 0))
    return lease


@pytest.mark.parametrize(
    ("sequence", "sub"),
    [
        ("9" * 5000, None),  # more digits than Python converts
        ("0" * 130, None),  # one digit more than Kinesis has
        ("7", 2**63),
        ("7", -1),
        ("\u0667", None),  # a digit, but none of ASCII
        ("", None),
    ],
)
def test_numbers_beyond_the_bounds_of_the_daemon_are_refused(sequence: str, sub: int | None) -> None:
    assert lease_at("9" * 129).checkpoint(CheckpointRequest(sequence, sub)) is CheckpointErrorName.ILLEGAL_ARGUMENT


def test_numbers_within_the_bounds_are_taken() -> None:
    lease = lease_at("9" * 129)
    assert lease.checkpoint(CheckpointRequest("7", 2**63 - 1)) is None
    assert lease.checkpoint(CheckpointRequest("9" * 129, 0)) is None
    assert lease.caught_up
