"""What a tour makes of the ledger of a sink: where every shard is, also those that have ended."""

from __future__ import annotations

import json

from rich.console import Console

from mld.quickstart.changes import CHANGES, SparkOrdersTour

OPEN, ENDED = "shardId-00000000000000000002-aa", "shardId-00000000000000000001-bb"


def test_a_shard_of_a_table_that_has_ended_is_at_its_last_change(tmp_path):
    tour = SparkOrdersTour(tmp_path, Console(), 100)
    ledger = tour.lake / CHANGES / "_mld" / "ledger"
    ledger.mkdir(parents=True)
    writer = {"marks": {"s": {OPEN: "7:0"}}, "ended": {"s": [f"={ENDED}", "=shardId-that-had-no-changes"]}}
    (ledger / "0001.json").write_text(json.dumps({"writers": [writer]}))
    tour.last_marks = lambda: {OPEN: 7, ENDED: 5}
    assert tour._marks(CHANGES) == {OPEN: 7, ENDED: 5}
