"""Which columns are written without a dictionary: those of which a writer has given it up."""

from __future__ import annotations

from mld.processors.spark.sinks.dictionaries import KEY, ROWS_MIN, ColumnChunk, Dictionaries, unrepeated


def chunk(path: str, uses: bool, values: int = ROWS_MIN) -> ColumnChunk:
    return ColumnChunk(path, values, uses)


def test_a_column_that_kept_no_dictionary_has_no_repetitions() -> None:
    assert unrepeated([chunk("id", False), chunk("kind", True)]) == {"id"}


def test_one_chunk_that_kept_its_dictionary_is_enough_to_go_on_with_it() -> None:
    assert unrepeated([chunk("id", False), chunk("id", True)]) == frozenset()


def test_chunks_of_few_values_say_nothing() -> None:
    assert unrepeated([chunk("id", False, ROWS_MIN - 1)]) == frozenset()
    assert unrepeated([chunk("id", False), chunk("id", True, ROWS_MIN - 1)]) == {"id"}


def test_fields_of_fields_are_columns_too() -> None:
    learner = Dictionaries({})
    learner.learn([chunk("payload.note", False), chunk("tags.list.element", True)])
    assert learner.options() == {f"{KEY}#payload.note": "false"}


def test_what_was_found_stays() -> None:
    learner = Dictionaries({})
    learner.learn([chunk("id", False), chunk("kind", True)])
    learner.learn([chunk("id", True), chunk("kind", False)])
    assert learner.options() == {f"{KEY}#id": "false", f"{KEY}#kind": "false"}


def test_ever_fewer_batches_are_looked_at() -> None:
    learner = Dictionaries({})
    looked = [number for number in range(1, 20) if learner.wants(ROWS_MIN)]
    assert looked == [1, 2, 4, 8, 16]


def test_small_batches_do_not_count() -> None:
    learner = Dictionaries({})
    assert not any(learner.wants(ROWS_MIN - 1) for _ in range(10))
    assert learner.wants(ROWS_MIN)


def test_what_the_user_says_of_dictionaries_holds() -> None:
    for name in (KEY, f"{KEY}#id", KEY.upper()):
        assert not Dictionaries({name: "true"}).wants(ROWS_MIN), name
    assert Dictionaries({"compression": "zstd"}).wants(ROWS_MIN)
