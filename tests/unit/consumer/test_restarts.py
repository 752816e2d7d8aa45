"""When a failed child comes back."""

from random import Random

import pytest

from mld.consumer.failures import delay_s, gives_up
from tests.support.fleet import settings_of


def child(policy: str = "park", **keys: str):
    return settings_of(mld__childFailurePolicy=policy, **keys).child


def test_the_delay_doubles_up_to_its_maximum_with_a_little_jitter():
    delays = [delay_s(child(), n, Random(1)) for n in range(1, 12)]
    for delay, plain in zip(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], strict=True):
        assert plain <= delay <= plain * 1.2


def test_a_longer_first_pause_is_kept():
    assert delay_s(child(mld__childRestartBackoffMillis="600000"), 3, Random(1)) >= 600.0


@pytest.mark.parametrize(
    ("policy", "failures", "given_up"),
    [("restart", 5, False), ("restart", 6, True), ("exit", 1, True), ("park", 10**9, False)],
    ids=["the last allowed", "one more", "none is allowed under Java's policy", "without a maximum never"],
)
def test_when_it_gives_up(policy, failures, given_up):
    assert gives_up(child(policy), failures) is given_up


def test_a_huge_number_of_failures_does_not_overflow():
    assert delay_s(child(), 10**5, Random(1)) <= 360.0
