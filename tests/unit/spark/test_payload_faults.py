"""What is said of payloads that do not fit the schema."""

from __future__ import annotations

from mld.processors.spark.session.decoding import RECORDS_MIN, STRAY_NAMES_MAX, MalformedShare, StrayNames


def test_a_stray_field_is_said_once_and_only_so_many_are():
    names = StrayNames()
    said = names.news(3, "ID, place.y")
    assert said is not None and said.startswith("3 records have fields") and "ID, place.y (letter case counts)" in said
    assert names.news(4, "place.y, ID") is None
    again = names.news(5, "ID, x\n")
    assert again is not None and "x\\n (" in again and "ID" not in again
    assert names.news(0, None) is None
    assert sum(names.news(1, f"f{n}") is not None for n in range(2 * STRAY_NAMES_MAX)) == STRAY_NAMES_MAX - 3


def test_a_share_is_judged_over_the_last_hundred_records_or_more():
    share = MalformedShare(0.5)
    assert share.excess(RECORDS_MIN - 1, RECORDS_MIN - 1) is None, "too few to tell"
    said = share.excess(1, 1)
    assert said is not None and said.startswith("100 of the last 100 records are malformed, more than")
    assert share.excess(1, 1) is not None, "what was refused comes again, and is refused again"
    assert share.excess(99, 0) is None, "half of them is not more than half"
    assert share.excess(1_000, 0) is None
    assert share.excess(1_000, 1_000) is None, "half of the last 2,000"
    assert share.excess(100, 100) is not None, "and all of what is younger"
    assert MalformedShare(1).excess(1_000, 1_000) is None
