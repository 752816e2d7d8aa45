"""Attributes of ours (leases#attributes-of-mld): all are declared, read as written, and never raise."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from mld.leases.own_attribute import OwnAttribute, integer, some_text
from mld.operating import events
from mld.tracking import stream_list
from tests.support.declared import own_attributes
from tests.support.servers import ROOT

NESTED = "[" * 100_000
ROW_KEYS = {stream_list.KEY, events.KEY}
DAMAGE: tuple[dict[str, Any], ...] = (
    {},
    {"NULL": True},
    {"BOOL": False},
    {"S": ""},
    {"S": NESTED},
    {"S": "9" * 5000},
    {"S": "\x00"},
    {"S": '[{"stream":[]}]'},
    {"N": "1E+125"},
    {"N": "-1"},
    {"N": "٣"},
    {"N": "9" * 5000},
    {"B": b""},
    {"SS": ["x"] * 200},
    {"SS": []},
    {"L": [{"L": []}]},
    {"M": {"since": {"S": "0001-01-01T00:00:00+14:00"}, "checkpoint": {"S": "LATEST"}}},
)


def test_there_are_attributes_of_leases_reports_and_of_the_list_of_streams() -> None:
    assert {"mldFailing", "mldDrain", "mldHeartbeat", "streams"} <= {one.name for one in own_attributes()}


@pytest.mark.parametrize("attribute", own_attributes(), ids=lambda one: one.name)
def test_an_attribute_as_mld_writes_it_is_read(attribute: OwnAttribute[Any]) -> None:
    assert attribute.read({attribute.name: {attribute.kind: attribute.example}}) not in (None, attribute.if_damaged)
    assert attribute.read({}) is None


@pytest.mark.parametrize("attribute", own_attributes(), ids=lambda one: one.name)
def test_whatever_stands_in_an_attribute_reading_it_raises_nothing(attribute: OwnAttribute[Any]) -> None:
    for value in DAMAGE:
        attribute.read({attribute.name: value})


def test_no_attribute_is_read_that_is_not_declared() -> None:
    """So that the fuzz of rows has each, and reads none in another way."""
    declared = {one.name for one in own_attributes()} | ROW_KEYS
    named = {
        node.value
        for text in (path.read_text(encoding="utf-8") for path in (ROOT / "mld").rglob("*.py"))
        if re.search(r"\bmld[A-Z]", text)  # most modules name none, and parsing all takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"mld[A-Z]\w+", node.value)
    }
    assert named <= declared


@pytest.mark.parametrize("found", [None, 5, "", "xxxx", ["x"]])
def test_a_text_is_not_empty_and_not_too_long(found: object) -> None:
    with pytest.raises(ValueError, match="text"):
        some_text(3)(found)


@pytest.mark.parametrize("found", ["", "-1", "1e1", "10", "٣", "0" * 20])
def test_an_integer_has_plain_digits_within_its_bounds(found: str) -> None:
    with pytest.raises(ValueError, match="integer"):
        integer(9)(found)
    assert integer(9)("09") == 9
