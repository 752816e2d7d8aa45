"""When a failed child comes back."""

from random import Random

from mld.consumer.restarts import RestartPolicy


def test_the_delay_doubles_up_to_its_maximum_with_a_little_jitter():
    policy = RestartPolicy(failures_max=20, backoff_s=1.0, backoff_max_s=10.0)
    delays = [policy.delay_s(n, Random(1)) for n in range(1, 8)]
    for delay, plain in zip(delays, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert plain <= delay <= plain * 1.2


def test_it_gives_up_after_the_last_allowed_failure():
    policy = RestartPolicy(failures_max=5, backoff_s=1.0, backoff_max_s=60.0)
    assert not policy.gives_up(5)
    assert policy.gives_up(6)


def test_no_failure_is_allowed_under_javas_policy():
    assert RestartPolicy(failures_max=0, backoff_s=1.0, backoff_max_s=60.0).gives_up(1)


def test_without_a_maximum_it_never_gives_up():
    assert not RestartPolicy(failures_max=None, backoff_s=1.0, backoff_max_s=60.0).gives_up(10**9)


def test_a_huge_number_of_failures_does_not_overflow():
    policy = RestartPolicy(failures_max=10**6, backoff_s=1.0, backoff_max_s=60.0)
    assert policy.delay_s(10**5, Random(1)) <= 72.0
