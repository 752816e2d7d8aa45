"""The safe prefix of several children, against the rule read literally, for any order of checkpoints."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.consumer import safe_prefix
from mld.consumer.safe_prefix import RECORDS_MAX, STEP_RECORDS, STRETCHES_MAX, SafePrefix
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position
from mld.core.steps import finish

START = Position("100")
CHILDREN = 3


def give(prefix: SafePrefix, first: int, owners: str) -> None:
    """The records from this number on are given to these children, as one page."""
    records = [(str(first + index).encode(), 0, int(child)) for index, child in enumerate(owners)]
    prefix.given(records, {record[2]: record for record in records})


def prefix_of(owners: str) -> SafePrefix:
    """The records 101, 102, … given to these children."""
    prefix = SafePrefix(CHILDREN, START)
    if owners:
        give(prefix, 101, owners)
    return prefix


def after(prefix: SafePrefix, child: int, position: Position) -> Position:
    """Where the prefix is after a checkpoint of the child."""
    prefix.confirmed(child, position)
    return finish(prefix.advance())


def test_the_picture_of_the_theory():
    prefix = prefix_of("01020121")
    after(prefix, 0, Position("106"))
    after(prefix, 1, Position("102"))
    assert after(prefix, 2, Position("107")) == Position("105")
    assert prefix.kept == 3


def test_a_child_that_was_given_nothing_holds_nobody_back():
    assert after(prefix_of("0011"), 1, Position("104")) == START
    prefix = prefix_of("0011")
    after(prefix, 0, Position("102"))
    assert after(prefix, 1, Position("104")) == Position("104")


def test_a_child_may_name_a_position_of_another_child():
    prefix = prefix_of("010")
    after(prefix, 0, Position("102"))
    assert after(prefix, 1, Position("103")) == Position("102")


def test_the_user_records_of_an_aggregate_are_records_of_their_own():
    prefix = SafePrefix(2, START)
    prefix.given([(b"101", 0, 0), (b"101", 1, 1), (b"101", 2, 0)], {})
    assert after(prefix, 0, Position("101", 2)) == Position("101", 0)
    assert after(prefix, 1, Position("101", 1)) == Position("101", 2)


def test_the_end_is_stored_when_all_have_checkpointed_it():
    prefix = prefix_of("01")
    assert after(prefix, 1, SHARD_END) == START
    assert after(prefix, 0, Position("101")) == Position("102")
    after(prefix, 2, SHARD_END)
    assert after(prefix, 0, SHARD_END) == SHARD_END


def test_an_empty_shard_ends():
    prefix = SafePrefix(2, TRIM_HORIZON)
    assert after(prefix, 0, SHARD_END) == TRIM_HORIZON
    assert after(prefix, 1, SHARD_END) == SHARD_END


def test_no_checkpoint_goes_back():
    prefix = prefix_of("00")
    after(prefix, 0, Position("102"))
    assert after(prefix, 0, Position("101")) == Position("102")
    assert after(prefix, 0, START) == Position("102")


@given(st.lists(st.tuples(st.integers(0, CHILDREN - 1), st.integers(0, 12)), max_size=30), st.text("012", max_size=12))
def test_it_is_the_last_record_before_the_first_open_one(steps, owners):
    prefix = prefix_of(owners)
    confirmed = [100] * CHILDREN
    for child, upto in steps:
        confirmed[child] = max(confirmed[child], 100 + upto)
        found = after(prefix, child, Position(str(100 + upto)))
        records = [(101 + index, int(owner)) for index, owner in enumerate(owners)]
        still_open = [number for number, owner in records if number > confirmed[owner]]
        safe = [number for number, _ in records if number < min(still_open, default=10**6)]
        assert found == (Position(str(safe[-1])) if safe else START)
        assert prefix.kept == len(records) - len(safe)


PAGES = st.lists(st.text("012", min_size=1, max_size=6), max_size=20)
ACTS = st.lists(st.tuples(st.integers(0, CHILDREN - 1), st.integers(0, 60)), max_size=60)


@given(PAGES, ACTS)
def test_a_long_prefix_passes_no_open_record_either_and_all_in_the_end(pages, acts):
    """With room for few records and few stretches, pages come between checkpoints."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(safe_prefix, "RECORDS_MAX", 8)
        patched.setattr(safe_prefix, "STRETCHES_MAX", 3)
        patched.setattr(safe_prefix, "STEP_RECORDS", 3)
        prefix, owners, confirmed = SafePrefix(CHILDREN, START), "", [100] * CHILDREN
        for page, act in itertools.zip_longest(pages, acts):
            if page is not None:
                give(prefix, 101 + len(owners), page)
                owners += page
            if act is not None:
                child, upto = act[0], min(100 + act[1], 100 + len(owners))
                confirmed[child] = max(confirmed[child], upto)
                found = after(prefix, child, Position(str(upto)))
                assert all(confirmed[int(owners[number])] >= 101 + number for number in range(found.number - 100))
            assert prefix.kept <= 8 + 3
        last = Position(str(100 + len(owners)))
        assert [after(prefix, child, last) for child in range(CHILDREN)][-1] == (last if owners else START)
        assert prefix.kept == 0


def test_records_are_single_again_once_no_stretch_is_left():
    prefix = SafePrefix(2, START)
    give(prefix, 101, "01" * (RECORDS_MAX // 2 - 1))
    give(prefix, 99 + RECORDS_MAX, "0101")
    assert prefix.kept == RECORDS_MAX - 2 + 1
    last = Position(str(102 + RECORDS_MAX))
    after(prefix, 0, last)
    assert after(prefix, 1, Position(str(100 + RECORDS_MAX))) == Position(str(98 + RECORDS_MAX))
    assert after(prefix, 1, last) == last
    give(prefix, 103 + RECORDS_MAX, "01")
    assert after(prefix, 0, Position(str(103 + RECORDS_MAX))) == Position(str(103 + RECORDS_MAX))


def test_what_is_kept_for_a_child_that_never_checkpoints_is_bounded():
    prefix = SafePrefix(2, START)
    for page in range(3 * STRETCHES_MAX):
        give(prefix, 101 + 1000 * page, "01" * 500)
        after(prefix, 0, Position(str(1100 + 1000 * page)))
    assert prefix.kept <= RECORDS_MAX + STRETCHES_MAX


def test_a_checkpoint_that_frees_many_records_is_no_long_turn_of_the_loop():
    prefix = SafePrefix(1, START)
    give(prefix, 101, "0" * 5000)
    prefix.confirmed(0, Position("5100"))
    steps = prefix.advance()
    next(steps)
    assert prefix.position == Position(str(100 + STEP_RECORDS))
    assert finish(steps) == Position("5100")
