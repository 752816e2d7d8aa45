"""What the tour makes of the ledger of a sink: where every shard is, also those that have ended."""

from __future__ import annotations

import json

from rich.console import Console

from mld.quickstart.lineage import TourOutcome
from mld.quickstart.spark import CLICKS, SparkTour

OPEN, ENDED = "shardId-000000000002", "shardId-000000000001"


def test_a_shard_that_has_ended_is_at_its_last_record(tmp_path):
    tour = SparkTour(tmp_path, Console(), 100)
    ledger = tour.lake / CLICKS / "_mld" / "ledger"
    ledger.mkdir(parents=True)
    writer = {"marks": {"s": {OPEN: "7:0"}}, "ended": {"s": ["0-1"]}}
    (ledger / "0001.json").write_text(json.dumps({"writers": [writer]}))
    tour._wanted = TourOutcome([], {}, [], {OPEN: 7, ENDED: 5})
    assert tour._marks(CLICKS) == {OPEN: 7, ENDED: 5}, "shard 0 had no records"
