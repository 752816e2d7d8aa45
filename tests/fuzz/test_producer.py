"""A hostile producer; the long run is `python -m tests.fuzz.producer`."""

from __future__ import annotations

import pytest

from mld.core.positions import Position
from mld.core.streams import HASH_KEY_MAX, HashRange
from mld.retrieval.kpl import MAGIC
from tests.fuzz.attacks import FULL, attack, names
from tests.fuzz.producer import EVERYTHING, FIRST, TIMES, Put, check_attack, check_memory, check_page, run
from tests.support.kpl import User, aggregate
from tests.support.tiers import sliced

EXAMPLES = 60
ATTACK_BYTES = 24_000  # some steps of the smallest user records
MEMORY_BYTES = 300_000
RECORDS_PER_PAGE = 10_000
RECORD_BYTES_MAX = 10 * 1024 * 1024
OF_EACH_KIND = (
    "one user record that is all",
    "too many empty keys",
    "unknown fields",
    "an index beyond the table",
    "keys and nothing else",
)
TINY = aggregate([User("k", b""), User("k", b"")])


@pytest.mark.parametrize("name", sliced(names(), *OF_EACH_KIND))
def test_an_attack_reaches_the_child_as_it_should_and_holds_up_nobody(name: str) -> None:
    check_attack(name, ATTACK_BYTES)


@pytest.mark.parametrize("name", sliced(names(), *OF_EACH_KIND))
def test_an_attack_takes_memory_in_proportion_to_what_was_put(name: str) -> None:
    check_memory([Put(attack(name, MEMORY_BYTES).data)])


def test_whatever_a_producer_puts_reaches_the_child_in_order_and_once() -> None:
    run(EXAMPLES, check_page, derandomize=True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(TINY, id="aggregate", marks=pytest.mark.full),
        pytest.param(b"x", id="plain", marks=pytest.mark.full),
        pytest.param(MAGIC, id="magic", marks=pytest.mark.full),
        pytest.param(attack("an index beyond the table", 60).data, id="malformed", marks=pytest.mark.full),
        pytest.param(attack("keys and nothing else", 60).data, id="nothing", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "hash_range",
    [
        pytest.param(EVERYTHING, id="ours"),
        pytest.param(HashRange(HASH_KEY_MAX, HASH_KEY_MAX), id="other", marks=pytest.mark.full),
    ],
)
def test_a_page_of_as_many_records_as_there_may_be(data: bytes, hash_range: HashRange) -> None:
    puts = [Put(data)] * (RECORDS_PER_PAGE - 1) + [Put(TINY)]
    check_page(puts, hash_range=hash_range)
    check_page(puts, Position(str(FIRST + RECORDS_PER_PAGE - 2)), hash_range)
    check_memory(puts)


@pytest.mark.parametrize(
    "key", ["", "\x00", "\u2028\u2029", "\x85\x9b", '"\\', "\ud800", "\udfff\ud800", FULL, "k" * 256]
)
@pytest.mark.parametrize("time", TIMES)
def test_any_partition_key_and_time_of_a_record(key: str, time: str) -> None:
    check_page([Put(b"data", key, time), Put(TINY, key, time), Put(b"", key, time)])


@pytest.mark.parametrize(
    "name",
    sliced(
        [
            "one user record that is all",
            "too many user records",
            "zeros",
            "garbage with its digest",
            "magic and garbage",
        ],
        "one user record that is all",
    ),
)
def test_a_record_of_10_mib(name: str) -> None:
    puts = [Put(attack(name, RECORD_BYTES_MAX - 2000).data)]
    check_page(puts, hash_range=EVERYTHING)
    check_memory(puts)
