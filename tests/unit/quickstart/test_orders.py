"""The writes of the tour of DynamoDB Streams, the changes that follow from them, and what counts as a fault."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from mld.quickstart.orders import (
    KEY,
    STATES,
    OrderChange,
    OrderWrite,
    SeenChange,
    checkpoint_faults,
    expected_changes,
    find_faults,
    last_numbers,
    order_writes,
    seen_change,
)

NEW = {KEY: {"S": "a"}, "status": {"S": "NEW"}}
PAID = {KEY: {"S": "a"}, "status": {"S": "PAID"}}
WANTED = {"a": [OrderChange("INSERT", None, NEW), OrderChange("MODIFY", NEW, PAID)]}
SEEN = [SeenChange("a", 7, WANTED["a"][0]), SeenChange("a", 9, WANTED["a"][1])]


def test_writes_tell_the_same_story_again() -> None:
    writes = list(order_writes(3_000, seed=1))
    assert writes == list(order_writes(3_000, seed=1)) != list(order_writes(3_000, seed=2))
    assert len(writes) == 3_000


def test_every_kind_of_write_comes() -> None:
    writes = list(order_writes(5_000, seed=7))
    changes = expected_changes(writes)
    events = Counter(change.event for found in changes.values() for change in found)
    assert min(events[name] for name in ("INSERT", "MODIFY", "REMOVE")) > 100
    assert 0 < 5_000 - events.total() < 500  # writes that change nothing
    for key, found in changes.items():
        assert found[0].event == "INSERT"
        assert all(after.old == before.new for before, after in itertools.pairwise(found))
        assert [c.new["status"]["S"] for c in found if c.new] == list(STATES[: len([c for c in found if c.new])])
        assert all(c.new[KEY]["S"] == key for c in found if c.new)


def test_a_write_of_the_same_is_no_change() -> None:
    writes = [OrderWrite("a", NEW), OrderWrite("a", NEW), OrderWrite("a", PAID, is_update=True), OrderWrite("a", None)]
    assert expected_changes(writes) == {"a": [*WANTED["a"], OrderChange("REMOVE", PAID, None)]}


def test_a_record_is_read_from_its_data() -> None:
    told = {"Keys": {KEY: {"S": "a"}}, "OldImage": NEW, "NewImage": PAID, "SequenceNumber": "9"}
    assert seen_change(9, json.dumps({"eventName": "MODIFY", "dynamodb": told})) == SEEN[1]


def test_what_is_there_once_and_in_order_has_no_fault() -> None:
    assert find_faults("it", WANTED, SEEN, in_order=True) == []
    assert find_faults("it", WANTED, SEEN[::-1], in_order=False) == []


OTHER_IMAGE = replace(SEEN[1], change=OrderChange("MODIFY", NEW, NEW))


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (SEEN[::-1], "out of order"),
        ([*SEEN, SEEN[1]], "more than once"),
        (SEEN[:1], "has INSERT, and should have INSERT MODIFY"),
        ([], "has nothing, and should have INSERT MODIFY"),
        ([SEEN[0], OTHER_IMAGE], "with other images"),
        ([*SEEN, SeenChange("b", 10, WANTED["a"][0])], "b has INSERT, and should have nothing"),
    ],
)
def test_faults(found: list[SeenChange], fault: str) -> None:
    faults = find_faults("it", WANTED, found, in_order=True)
    assert len(faults) == 1
    assert faults[0].startswith("it: ") and fault in faults[0]


@pytest.mark.parametrize(
    ("checkpoints", "faults"), [({"s": 9}, 0), ({}, 0), ({"s": 9, "empty": None}, 0), ({"s": 7}, 1), ({"s": None}, 1)]
)
def test_checkpoints_are_at_the_last_change(checkpoints: dict[str, Any], faults: int) -> None:
    assert len(checkpoint_faults(last_numbers({"s": SEEN, "empty": []}), checkpoints)) == faults
