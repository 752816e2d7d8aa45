"""What is said of payloads that do not fit the schema."""

from __future__ import annotations

from mld.processors.spark.batch.payload_faults import NAMES_MAX, StrayNames


def test_a_stray_field_is_said_once_and_only_so_many_are():
    names = StrayNames()
    said = names.news(3, "ID, place.y")
    assert said is not None and said.startswith("3 records have fields") and "ID, place.y (letter case counts)" in said
    assert names.news(4, "place.y, ID") is None
    again = names.news(5, "ID, x\n")
    assert again is not None and "x\\n (" in again and "ID" not in again
    assert names.news(0, None) is None
    assert sum(names.news(1, f"f{n}") is not None for n in range(2 * NAMES_MAX)) == NAMES_MAX - 3
