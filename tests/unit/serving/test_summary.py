"""The log's line a minute: its fields, its times, and that nothing is counted twice or left out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mld.metrics.declaring import Instant
from mld.metrics.registry import Metrics
from mld.serving.summary import Totals, summary_of, summing_up
from tests.twins.streams import VirtualClock
from tests.virtual_time import virtual

NOW = Instant(0.0, 1_000.0)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if vars(record).get("action") == "summary"]


def test_the_fields_are_what_was_done_since_and_what_is_so_now() -> None:
    metrics = Metrics()
    for key, behind_ms in (("a", 200), ("b", 3_400)):
        metrics.begin(key, 0.0).saw_lag(behind_ms, 1_000.0)
    before, after = Totals(100, 1_000, 1, 0), Totals(150, 4_000, 3, 2)
    assert summary_of(before, after, metrics, NOW, 60.04) == {
        "in_s": 60.0,
        "records": 50,
        "bytes": 3_000,
        "shards": 2,
        "restarts": 2,
        "leases_lost": 2,
        "behind_ms": 3_400,
    }


def test_a_lag_that_nobody_knows_is_missing_and_a_parked_shard_is_told() -> None:
    metrics = Metrics()
    metrics.begin("a", 0.0)
    metrics.worker.fault_counts = {"hole": 0, "parked": 1}
    fields = summary_of(Totals(), Totals(), metrics, NOW, 60.0)
    assert "behind_ms" not in fields
    assert fields["parked"] == 1
    assert "hole" not in fields


@virtual
async def test_a_line_a_minute_and_one_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    async with summing_up(metrics, VirtualClock()):
        for _ in range(3):
            metrics.worker.records += 10
            await asyncio.sleep(50)
    told = lines(caplog)
    assert [(one["in_s"], one["records"]) for one in told] == [(60.0, 20), (60.0, 10), (30.0, 0)]
    assert {one["levelname"] for one in told} == {"INFO"}
