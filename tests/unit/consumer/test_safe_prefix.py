"""The safe prefix of several children, against the rule read literally, for any order of checkpoints."""

from hypothesis import given
from hypothesis import strategies as st

from mld.consumer.safe_prefix import SafePrefix, is_ordered
from mld.core.positions import SHARD_END, TRIM_HORIZON, Position

START = Position("100")
CHILDREN = 3


def prefix_of(owners: str) -> SafePrefix:
    """The records 101, 102, … given to these children."""
    prefix = SafePrefix(CHILDREN, START)
    prefix.given((str(101 + index).encode(), 0, int(child)) for index, child in enumerate(owners))
    return prefix


def test_the_picture_of_the_theory():
    prefix = prefix_of("01020121")
    prefix.confirmed(0, Position("106"))
    prefix.confirmed(1, Position("102"))
    assert prefix.confirmed(2, Position("107")) == Position("105")
    assert len(prefix) == 3


def test_a_child_that_was_given_nothing_holds_nobody_back():
    assert prefix_of("0011").confirmed(1, Position("104")) == START
    prefix = prefix_of("0011")
    prefix.confirmed(0, Position("102"))
    assert prefix.confirmed(1, Position("104")) == Position("104")


def test_a_child_may_name_a_position_of_another_child():
    prefix = prefix_of("010")
    prefix.confirmed(0, Position("102"))
    assert prefix.confirmed(1, Position("103")) == Position("102")


def test_the_user_records_of_an_aggregate_are_records_of_their_own():
    prefix = SafePrefix(2, START)
    prefix.given([(b"101", 0, 0), (b"101", 1, 1), (b"101", 2, 0)])
    assert prefix.confirmed(0, Position("101", 2)) == Position("101", 0)
    assert prefix.confirmed(1, Position("101", 1)) == Position("101", 2)


def test_the_end_is_stored_when_all_have_checkpointed_it():
    prefix = prefix_of("01")
    assert prefix.confirmed(1, SHARD_END) == START
    assert prefix.confirmed(0, Position("101")) == Position("102")
    prefix.confirmed(2, SHARD_END)
    assert prefix.confirmed(0, SHARD_END) == SHARD_END


def test_an_empty_shard_ends():
    prefix = SafePrefix(2, TRIM_HORIZON)
    assert prefix.confirmed(0, SHARD_END) == TRIM_HORIZON
    assert prefix.confirmed(1, SHARD_END) == SHARD_END


def test_no_checkpoint_goes_back():
    prefix = prefix_of("00")
    prefix.confirmed(0, Position("102"))
    assert prefix.confirmed(0, Position("101")) == Position("102")
    assert prefix.confirmed(0, START) == Position("102")


@given(st.lists(st.tuples(st.integers(0, CHILDREN - 1), st.integers(0, 12)), max_size=30), st.text("012", max_size=12))
def test_it_is_the_last_record_before_the_first_open_one(steps, owners):
    prefix = prefix_of(owners)
    confirmed = [100] * CHILDREN
    for child, upto in steps:
        confirmed[child] = max(confirmed[child], 100 + upto)
        found = prefix.confirmed(child, Position(str(100 + upto)))
        records = [(101 + index, int(owner)) for index, owner in enumerate(owners)]
        still_open = [number for number, owner in records if number > confirmed[owner]]
        safe = [number for number, _ in records if number < min(still_open, default=10**6)]
        assert found == (Position(str(safe[-1])) if safe else START)
        assert len(prefix) == len(records) - len(safe)


def test_what_is_certainly_in_order():
    assert is_ordered([(b"10", 0, 0), (b"10", 1, 1), (b"11", 0, 0)])
    assert not is_ordered([(b"11", 0, 0), (b"10", 0, 1)])
    assert not is_ordered([(b"9", 0, 0), (b"10", 0, 1)])  # texts of two lengths do not sort as numbers
