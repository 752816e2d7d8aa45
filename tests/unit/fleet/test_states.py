"""Rows of both migrations (coordination#migration-rows)."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.fleet.migrate.states import (
    CLIENT_VERSION,
    HISTORY_MAX,
    TABLE_MIGRATION,
    ClientVersion,
    HistoryEntry,
    StateRow,
    TableStatus,
    UnreadableStateError,
    advanced,
    changes_of,
    first_row,
    item_of,
    parse_state,
)
from mld.leases.rows import Place

LEASES = Place("app", "leaseKey")
LEGACY = Place("app-CoordinatorState", "key")

# As Java writes them.
CLIENT_VERSION_ITEM: dict[str, Any] = json.loads(
    """{"leaseKey":{"S":"Migration3.0"},"entityType":{"S":"CLIENT_VERSION_MIGRATION"},"cv":{"S":"CLIENT_VERSION_3X"},
    "mb":{"S":"host-1:9f3c"},"mts":{"N":"1784640000123"},
    "h":{"L":[{"M":{"cv":{"S":"CLIENT_VERSION_INIT"},"mb":{"S":"host-1:9f3c"},"mts":{"N":"1784640000101"}}}]}}"""
)
TABLE_ITEM: dict[str, Any] = json.loads(
    """{"key":{"S":"TableMigration3.5"},"entityType":{"S":"TABLE_MIGRATION"},
    "tm":{"S":"TABLE_MIGRATION_STATUS_DEPLOYED"},"mb":{"S":"host-1:9f3c"},"mts":{"N":"1784643600456"},
    "h":{"L":[{"M":{"tm":{"S":"TABLE_MIGRATION_STATUS_INIT"},"mb":{"S":"host-1:9f3c"},"mts":{"N":"1784640000301"}}},
              {"M":{"tm":{"S":"TABLE_MIGRATION_STATUS_INIT"},"mb":{"S":"host-1:9f3c"},"mts":{"N":"1784640000300"}}}]}}"""
)


def test_the_specs_client_version_row_is_understood():
    row = parse_state(CLIENT_VERSION, CLIENT_VERSION_ITEM, LEASES)
    past = HistoryEntry("CLIENT_VERSION_INIT", "host-1:9f3c", 1784640000101)
    assert row == StateRow(CLIENT_VERSION, ClientVersion.V3X, "host-1:9f3c", 1784640000123, (past,))
    assert item_of(row, LEASES) == CLIENT_VERSION_ITEM


def test_the_specs_table_row_is_what_two_steps_of_ours_write():
    row = first_row(TABLE_MIGRATION, TableStatus.INIT, "host-1:9f3c", 1784640000301)
    row = advanced(row, TableStatus.DEPLOYED, "host-1:9f3c", 1784643600456)
    ours = item_of(row, LEGACY)
    ours["h"]["L"][1]["M"]["mts"]["N"] = "1784640000300"  # Java reads the clock once more between the two
    assert ours == TABLE_ITEM


@pytest.mark.parametrize("kind", [CLIENT_VERSION, TABLE_MIGRATION], ids=lambda kind: kind.key)
def test_every_state_reads_back(kind):
    for state in kind.states:
        row = first_row(kind, state, "w", 5)
        for place in (LEASES, LEGACY):
            assert parse_state(kind, item_of(row, place), place) == row


def test_keep_unknown_attributes_and_at_most_ten_history_entries_newest_first():
    item = CLIENT_VERSION_ITEM | {"future": {"M": {"a": {"N": "1"}}}}
    row = parse_state(CLIENT_VERSION, item, LEASES)
    for number in range(15):
        row = advanced(row, ClientVersion.V2X, f"w-{number}", 1784640001000 + number)
    written = item_of(row, LEASES)
    assert written["future"] == {"M": {"a": {"N": "1"}}}
    assert [entry["M"]["mb"]["S"] for entry in written["h"]["L"]] == [f"w-{number}" for number in range(13, 3, -1)]
    assert len(row.history) == HISTORY_MAX
    assert written["mts"] == {"N": "1784640001014"}, "milliseconds"
    assert "future" not in changes_of(row), "an update leaves it as it is"


def test_an_unknown_attribute_and_an_unknown_state_in_the_history_survive():
    item = CLIENT_VERSION_ITEM | {
        "h": {"L": [{"M": {"cv": {"S": "CLIENT_VERSION_4X"}, "mb": {"S": "w"}, "why": {"S": "x"}}}]}
    }
    written = item_of(advanced(parse_state(CLIENT_VERSION, item, LEASES), ClientVersion.V2X, "me", 9), LEASES)
    assert written["h"]["L"][1] == item["h"]["L"][0]


@pytest.mark.parametrize("state", [None, {"S": "CLIENT_VERSION_4X"}, {"S": ""}, {"N": "3"}, {"NULL": True}])
def test_an_unknown_state_is_an_error_that_names_row_and_attribute(state):
    item = {name: value for name, value in CLIENT_VERSION_ITEM.items() if name != "cv"}
    if state is not None:
        item["cv"] = state
    with pytest.raises(UnreadableStateError, match=r"Migration3\.0 .*cv is"):
        parse_state(CLIENT_VERSION, item, LEASES)


@pytest.mark.parametrize(
    "damage",
    [{"mb": {"N": "1"}}, {"mts": {"N": "1.5"}}, {"mts": {"S": "x"}}, {"h": {"S": "x"}}, {"h": {"L": [{"S": "x"}]}}],
    ids=str,
)
def test_damage_beside_the_state_does_not_matter(damage):
    row = parse_state(CLIENT_VERSION, CLIENT_VERSION_ITEM | damage, LEASES)
    assert row.state is ClientVersion.V3X
    item_of(advanced(row, ClientVersion.V2X, "w", 1), LEASES)


def test_a_row_is_not_changed_by_its_successor():
    row = first_row(CLIENT_VERSION, ClientVersion.UPGRADE_FROM_2X, "w", 1)
    before = item_of(row, LEASES)
    advanced(row, ClientVersion.V3X_WITH_ROLLBACK, "w", 2)
    assert item_of(row, LEASES) == before
    with pytest.raises(FrozenInstanceError):
        row.state = ClientVersion.V3X  # type: ignore[misc]


@given(st.lists(st.tuples(st.sampled_from(ClientVersion), st.text(min_size=1), st.integers(0, 2**53)), max_size=15))
def test_any_succession_of_states_reads_back(steps):
    row = first_row(CLIENT_VERSION, ClientVersion.V2X, "w", 0)
    for state, by, at_ms in steps:
        row = advanced(row, state, by, at_ms)
    assert parse_state(CLIENT_VERSION, item_of(row, LEGACY), LEGACY) == row
