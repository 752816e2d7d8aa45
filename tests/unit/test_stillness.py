"""Since when values have been unchanged: every row of the table in `mld.core.stillness`."""

from __future__ import annotations

import pytest

from mld.core.stillness import Stillness


def after(*looks: tuple[float, str]) -> Stillness[str, str]:
    seen: Stillness[str, str] = Stillness()
    for now, value in looks:
        seen.saw("key", value, now)
    return seen


@pytest.mark.parametrize(
    ("case", "looks", "since", "has_moved"),
    [
        ("seen once", [(1.0, "b")], 1.0, False),
        ("unchanged", [(1.0, "b"), (5.0, "b")], 1.0, False),
        ("greater", [(1.0, "b"), (5.0, "c")], 5.0, True),
        ("smaller", [(1.0, "b"), (5.0, "a")], 5.0, True),
        ("unchanged after it has moved", [(1.0, "b"), (5.0, "c"), (9.0, "c")], 5.0, True),
        ("there and back", [(1.0, "b"), (5.0, "c"), (9.0, "b")], 9.0, True),
    ],
)
def test_since_when_a_value_is_unchanged(
    case: str, looks: list[tuple[float, str]], since: float, has_moved: bool
) -> None:
    seen = after(*looks)
    assert (seen.since("key"), seen.has_moved("key")) == (since, has_moved), case
    assert seen.value("key") == looks[-1][1], case
    assert not seen.is_still("key", since + 10.0, 10.0), case
    assert seen.is_still("key", since + 10.1, 10.0), case


def test_what_is_news() -> None:
    seen = after()
    assert [seen.saw("key", value, 1.0) for value in "bbab"] == [True, False, True, True]


def test_the_first_look_at_a_key_may_count_from_another_time_and_later_ones_may_not() -> None:
    seen = after()
    seen.saw("key", "a", 5.0, first_at=2.0)
    assert seen.since("key") == 2.0
    seen.saw("key", "b", 9.0, first_at=2.0)
    assert seen.since("key") == 9.0


def test_a_value_that_begins_has_not_moved() -> None:
    seen = after((1.0, "a"), (2.0, "b"))
    seen.begin("key", "b", 7.0)
    assert (seen.since("key"), seen.has_moved("key")) == (7.0, False)
    seen.saw("key", "c", 8.0)
    assert seen.has_moved("key")


def test_a_look_at_everything_forgets_what_is_gone() -> None:
    seen = after((1.0, "a"))
    seen.saw_all({"key": "a", "other": "a"}, 5.0)
    assert (seen.since("key"), seen.since("other")) == (1.0, 5.0)
    seen.saw_all({"other": "b"}, 7.0)
    seen.saw_all({"key": "a", "other": "b"}, 9.0)
    assert (seen.since("key"), seen.since("other")) == (9.0, 7.0)


def test_of_what_is_forgotten_nothing_is_known() -> None:
    seen = after((1.0, "a"))
    seen.saw("other", "a", 1.0)
    seen.forget("key")
    assert "key" not in seen
    assert len(seen) == 1
    seen.forget_all()
    assert not seen.is_still("other", 99.0, 1.0)
    assert not seen.has_moved("other")
    assert seen.value("other") is None
