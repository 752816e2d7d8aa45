"""When a failed child comes back."""

from random import Random

import pytest

from mld.consumer.restarts import RestartPolicy


def test_the_delay_doubles_up_to_its_maximum_with_a_little_jitter():
    policy = RestartPolicy(failures_max=20, backoff_s=1.0)
    delays = [policy.delay_s(n, Random(1)) for n in range(1, 12)]
    for delay, plain in zip(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], strict=True):
        assert plain <= delay <= plain * 1.2


def test_a_longer_first_pause_is_kept():
    assert RestartPolicy(failures_max=None, backoff_s=600.0).delay_s(3, Random(1)) >= 600.0


@pytest.mark.parametrize(
    ("failures_max", "failures", "gives_up"),
    [(5, 5, False), (5, 6, True), (0, 1, True), (None, 10**9, False)],
    ids=["the last allowed", "one more", "none is allowed under Java's policy", "without a maximum never"],
)
def test_when_it_gives_up(failures_max, failures, gives_up):
    assert RestartPolicy(failures_max, backoff_s=1.0).gives_up(failures) is gives_up


def test_a_huge_number_of_failures_does_not_overflow():
    policy = RestartPolicy(failures_max=10**6, backoff_s=1.0)
    assert policy.delay_s(10**5, Random(1)) <= 360.0
