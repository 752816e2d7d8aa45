"""Budgets of tokens: what may be spent at once, how they fill again, and that they cannot be overdrawn without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mld.core.token_budget import BudgetLimit, ReportedBudget, TokenBudget

LIMIT = BudgetLimit("of a test", 20, 60.0)


def spent_at(budget: TokenBudget, now: float, tokens: float = 1.0) -> bool:
    """Do the work if it is allowed."""
    if not budget.allows(now):
        return False
    budget.charge(now, tokens)
    return True


def test_as_many_as_there_are_tokens_may_come_at_once_and_no_more() -> None:
    budget = TokenBudget(LIMIT)
    assert sum(spent_at(budget, 5.0) for _ in range(100)) == 20
    assert budget.wait_s(5.0) == 3.0


def test_a_budget_fills_evenly_and_never_above_its_size() -> None:
    budget = TokenBudget(LIMIT)
    while spent_at(budget, 5.0):
        pass
    assert not budget.allows(7.9)
    assert spent_at(budget, 8.0)
    assert not budget.allows(8.0)
    assert budget.left(1e9) == 20


def test_work_that_turns_out_to_be_dear_is_paid_within_two_periods() -> None:
    budget = TokenBudget(LIMIT)
    budget.charge(0.0, 1e6)
    assert budget.left(0.0) == -20
    assert not budget.allows(60.0)
    assert budget.left(120.0) == 20


def test_refusals_are_reported_once_a_minute_whatever_the_budget() -> None:
    budget = ReportedBudget(BudgetLimit("of a test", 1, 3600.0))
    assert [budget.begin_report(now) for now in (0.0, 1.0, 59.0, 60.0, 61.0)] == [True, False, False, True, False]


def test_work_that_costs_nothing_is_never_refused() -> None:
    budget = TokenBudget(LIMIT)
    for now in range(1000):
        assert budget.allows(float(now))
        budget.charge(float(now), 0.0)
    assert budget.wait_s(1000.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 50.0)), max_size=60))
def test_whatever_is_asked_for_no_more_is_spent_than_the_budget_and_one_overdraft(
    asked: list[tuple[float, float]],
) -> None:
    budget, now, spent = TokenBudget(LIMIT), 0.0, 0.0
    for pause_s, tokens in asked:
        now += pause_s
        before = budget.left(now)
        if budget.allows(now):
            budget.charge(now, tokens)
            assert budget.left(now) <= before
        spent += before - budget.left(now)
    assert spent <= 20 + 20 + now * 20 / 60 + 1e-6
