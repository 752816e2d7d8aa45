"""When answers are held, in virtual time: one shard with pages of its own, triggers on the beat of the others."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.processors.spark.link import HeldAnswers, hold_limits

HAND_OVER_S = 0.005
"""From an answer to the next batch, if the daemon has it."""
SECOND = hold_limits(1.0, None)


def serve(pages_at, trigger_s=1.0, job_s=0.6):
    """For each page: when it came to the child, when it was committed, whether its answer was held."""
    bounds = hold_limits(trigger_s, None)
    held, answered_at = HeldAnswers(), 0.0
    for page_at in pages_at:
        came_at = max(page_at, answered_at) + HAND_OVER_S
        committed_at = math.ceil(came_at / trigger_s) * trigger_s + job_s
        held = held.when(answered_at, came_at, bounds)
        holds = held.allows(bounds)
        answered_at = min(committed_at, came_at + bounds.hold_s) if holds else came_at
        if holds:
            held = held.after(came_at, answered_at)
        yield came_at, committed_at, holds


def beat(every_s, seconds, phase_s=0.0):
    return [phase_s + n * every_s for n in range(int(seconds / every_s))]


def test_a_queue_drains_in_a_few_triggers():
    served = list(serve([0.0] * 100))
    assert served[-1][1] <= 4.0
    assert [holds for _, _, holds in served] == [True] + [False] * 99, "the first job ends after a trigger's time"


@pytest.mark.parametrize("every_s", [0.2, 0.3, 0.5, 0.9, 1.0, 1.1])
@pytest.mark.parametrize("job_s", [0.1, 0.6, 0.9])
def test_no_page_waits_for_the_third_trigger_however_often_they_come(every_s, job_s):
    for phase in range(10):
        pages = [0.0] * 20 + beat(every_s, 300, phase / 10)
        late = [committed - page for page, (_, committed, _) in zip(pages, serve(pages, job_s=job_s), strict=True)]
        assert max(late[40:]) < 3.0 + job_s
        assert sorted(late[40:])[len(late) // 2] < 2.0


@given(st.lists(st.floats(0.2, 3.0), max_size=300), st.sampled_from([0.1, 1.0, 10.0]), st.floats(0.05, 1.0))
def test_the_delay_is_bounded(gaps, trigger_s, job):
    pages, job_s = list(accumulate(gaps)), job * trigger_s
    queue_s = HAND_OVER_S * (1 + 2 * (trigger_s + SECOND.patience_s) / 0.2)
    bound = hold_limits(trigger_s, None).patience_s + 2 * (trigger_s + job_s) + queue_s
    for page, (_, committed, _) in zip(pages, serve(pages, trigger_s, job_s), strict=True):
        assert committed - page <= bound


def test_a_quiet_shard_holds_each_answer():
    assert all(holds for _, _, holds in serve(beat(2.0, 100)))
    assert all(holds for _, _, holds in serve(beat(30.0, 600), trigger_s=20.0, job_s=1.0))


def test_the_first_batch_is_held_though_it_was_there_at_once():
    assert HeldAnswers().when(99.0, 99.001, SECOND).allows(SECOND)


def test_a_shard_that_has_caught_up_holds_again():
    held = HeldAnswers().when(99.0, 99.5, SECOND).after(99.5, 101.0)
    assert not held.when(101.0, 101.01, SECOND).allows(SECOND)
    assert held.when(101.0, 101.25, SECOND).allows(SECOND), "nothing was there"
    assert held.when(102.0, 102.01, SECOND).allows(SECOND), "what was there has been taken meanwhile"


def test_short_holds_may_follow_each_other():
    held = HeldAnswers().when(9.0, 10.0, SECOND).after(10.0, 10.4)
    held = held.when(10.4, 10.41, SECOND)
    assert held.allows(SECOND)
    assert not held.after(10.41, 11.1).allows(SECOND)


def test_limits():
    assert hold_limits(1.0, None) == (15.0, 1.0, 0.25)
    assert hold_limits(0.01, 10.0) == (5.0, 1.0, 0.05)
    assert hold_limits(60.0, None) == (120.0, 60.0, 1.0)
