"""Rules: retrieval#valid-answers and retrieval#polling-errors."""

from __future__ import annotations

import pytest

from mld import errors
from mld.retrieval.faults import ENDS_WITHOUT_CHILDREN_MAX, Reaction, Verdict, judge, reaction_to
from mld.retrieval.page import RecordsPage
from mld.streams import HASH_KEY_MAX, ChildShard, HashRange

CHILD = ChildShard("child", frozenset({"parent"}), HashRange(0, HASH_KEY_MAX))
ORPHAN = ChildShard("orphan", frozenset(), HashRange(0, HASH_KEY_MAX))


def answer(next_iterator: str | None, *children: ChildShard) -> RecordsPage:
    return RecordsPage((), next_iterator, 0, children)


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        (answer("next"), Verdict.GOES_ON),
        (answer(None, CHILD), Verdict.ENDED),
        (answer(None, CHILD, CHILD), Verdict.ENDED),
        (answer(None), Verdict.INVALID),
        (answer("next", CHILD), Verdict.INVALID),
        (answer(None, CHILD, ORPHAN), Verdict.INVALID),
    ],
)
def test_an_answer_is_judged_by_itself(page: RecordsPage, verdict: Verdict) -> None:
    assert judge(page, 0) is verdict


@pytest.mark.parametrize("page", [answer(None), answer(None, ORPHAN)])
def test_a_repeated_end_without_usable_children_is_believed_in_the_end(page: RecordsPage) -> None:
    verdicts = [judge(page, before) for before in range(ENDS_WITHOUT_CHILDREN_MAX)]
    assert verdicts == [Verdict.INVALID] * (ENDS_WITHOUT_CHILDREN_MAX - 1) + [Verdict.ENDED_CHILDREN_UNKNOWN]


def test_a_shard_that_goes_on_with_children_is_never_believed() -> None:
    assert judge(answer("next", CHILD), 1000) is Verdict.INVALID


def test_children_named_late_are_taken() -> None:
    assert judge(answer(None, CHILD), ENDS_WITHOUT_CHILDREN_MAX - 1) is Verdict.ENDED


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (errors.IteratorExpiredError, Reaction.NEW_ITERATOR),
        (errors.InvalidStreamArgumentError, Reaction.NEW_ITERATOR),
        (errors.StreamThrottledError, Reaction.SAME_ITERATOR_SLOWER),
        (errors.StreamNotFoundError, Reaction.ASK_CONSUMER),
        (errors.InvalidStreamResponseError, Reaction.SAME_ITERATOR),
        (errors.StreamUnavailableError, Reaction.SAME_ITERATOR),
        (errors.StreamInUseError, Reaction.SAME_ITERATOR),
        (errors.StreamError, Reaction.SAME_ITERATOR),
    ],
)
def test_every_error_has_a_reaction(error: type[errors.StreamError], reaction: Reaction) -> None:
    assert reaction_to(error("scripted")) is reaction
