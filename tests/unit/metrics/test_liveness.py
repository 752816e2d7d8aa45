"""A worker is alive while each loop keeps its promise; what waits for others promises nothing."""

from __future__ import annotations

from mld.metrics.progress import PERIODS, LateLoop, Progress


def test_a_loop_is_overdue_after_three_of_its_periods() -> None:
    progress = Progress()
    progress.step("renewals", 100.0, period_s=2.0)
    assert progress.overdue(100.0 + PERIODS * 2.0) == []
    assert progress.overdue(106.5) == [LateLoop("renewals", 6.5)]


def test_a_step_is_a_new_promise() -> None:
    progress = Progress()
    progress.step("renewals", 100.0, period_s=2.0)
    progress.step("renewals", 110.0, period_s=2.0)
    assert progress.overdue(115.0) == []


def test_who_waits_for_others_promises_nothing() -> None:
    progress = Progress()
    progress.step("reader shardId-000000000000", 100.0, period_s=1.0)
    progress.rest("reader shardId-000000000000")
    progress.rest("never heard of")
    assert progress.overdue(10_000.0) == []


def test_the_longest_silent_loop_comes_first() -> None:
    progress = Progress()
    progress.step("a", 100.0, period_s=1.0)
    progress.step("b", 50.0, period_s=1.0)
    assert [one.name for one in progress.overdue(200.0)] == ["b", "a"]


def test_an_event_loop_that_came_late_proves_itself_before_it_counts_as_alive() -> None:
    progress = Progress()
    for at in (0.0, 1.0, 2.0):
        progress.timely_step("event loop", at, period_s=1.0)
        assert progress.overdue(at) == []
    progress.timely_step("event loop", 8.0, period_s=1.0)
    for at in (9.0, 10.0):
        progress.timely_step("event loop", at, period_s=1.0)
        assert progress.overdue(at) == [LateLoop("event loop", 6.0)]
    progress.timely_step("event loop", 11.0, period_s=1.0)
    assert progress.overdue(11.0) == []


def test_an_event_loop_that_hangs_in_turns_is_overdue_all_the_time() -> None:
    progress = Progress()
    now = 0.0
    progress.timely_step("event loop", now, period_s=1.0)
    for _ in range(20):
        now += 4.0  # it hangs
        assert progress.overdue(now), "whoever asks before the loop's own timer"
        for _ in range(PERIODS - 1):
            progress.timely_step("event loop", now, period_s=1.0)
            assert progress.overdue(now), "and who asks after it"
            now += 1.0


def test_another_loop_may_come_late_once() -> None:
    progress = Progress()
    progress.step("renewals", 0.0, period_s=1.0)
    progress.step("renewals", 60.0, period_s=1.0)
    assert progress.overdue(60.0) == [], "it waited for the event loop, which tells of that itself"
