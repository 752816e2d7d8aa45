"""What is read from the progress of a streaming query."""

from __future__ import annotations

import pytest

from mld.processors.spark.session import handover
from mld.processors.spark.streaming import queries

NOTHING: dict[str, object] = {"batchId": 3, "stateOperators": [], "eventTime": {}, "observedMetrics": {}}


@pytest.mark.parametrize(
    ("operators", "late"),
    [
        ([], 0),
        ([{"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": 2}], 2),
        ([{"numRowsDroppedByWatermark": 2}, {"numRowsDroppedByWatermark": 3}, {"operatorName": "dedupe"}], 5),
    ],
)
def test_late_rows_are_those_of_all_operators(operators, late):
    assert queries.late_rows({**NOTHING, "stateOperators": operators}) == late


def test_what_a_query_without_state_or_watermark_says():
    assert (
        queries.late_rows({}),
        queries.observed(NOTHING, handover.OBSERVED),
        queries.watermark(NOTHING),
    ) == (0, {}, None)


def test_what_was_observed_and_the_watermark():
    said = {
        **NOTHING,
        "observedMetrics": {handover.OBSERVED: {"seen": 5, "malformed": 2}},
        "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
    }
    assert queries.observed(said, handover.OBSERVED) == {"seen": 5, "malformed": 2}
    assert queries.watermark(said) == "2026-01-01T00:00:00.000Z"
