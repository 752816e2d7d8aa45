"""What records make a worker ask for: the named attacks and a slice of the drawn ones; the long run is
`make fuzz-producer`.
"""

from __future__ import annotations

from tests.fuzz.budgets import check_bombs, check_directories_made_first, check_made_up_ids, run

EXAMPLES = 40


def test_ids_that_a_producer_makes_up_cost_few_calls_and_hold_up_nobody() -> None:
    check_made_up_ids()


def test_payloads_that_take_long_use_up_the_budget_of_their_shard_only() -> None:
    check_bombs()


def test_a_directory_that_a_local_user_makes_first_takes_no_definition_away() -> None:
    check_directories_made_first()


def test_no_drawn_records_make_a_worker_ask_for_more_than_their_budgets() -> None:
    run(EXAMPLES, derandomize=True)
