"""The id that a worker gives itself names its host and can be a key anywhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.core import whereabouts
from mld.properties.derive import WORKER_ID_BYTES_MAX
from tests.support.settings import defaults


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("ip-10-0-1-23", "ip-10-0-1-23-0f"),
        ("", "worker-0f"),
        ("---", "worker-0f"),
        ("höst name", "h-st-name-0f"),
        ("shardId-000000000000", "host-shardId-000000000000-0f"),
        ("a" * 300, "a" * 40 + "-0f"),
    ],
)
def test_the_host_stands_first(host: str, expected: str) -> None:
    assert whereabouts.worker_id_of(host, "0f") == expected


@given(st.text())
def test_any_host_name_makes_a_key(host: str) -> None:
    made = whereabouts.worker_id_of(host, "0123456789")
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", made) or made[0] == "_"
    assert len(made) <= 56 < WORKER_ID_BYTES_MAX
    assert not made.lower().startswith("shardid")


def test_two_starts_have_two_ids_and_one_place() -> None:
    assert whereabouts.new_worker_id() != whereabouts.new_worker_id()
    place = whereabouts.place_of_process(1763661600.9)
    assert place["host"] == whereabouts.host_name()
    assert place["started"] == "1763661600"
    assert defaults().worker_id is None
