"""How often shards are read, by the kind of their stream."""

from __future__ import annotations

import pytest

from mld.core.streams import StreamKind
from mld.retrieval.pacing import Pace, delay_s
from mld.retrieval.reader_factory import polling_intervals
from tests.support.fleet import settings_of


@pytest.mark.parametrize(
    ("kind", "lag_ms", "wait_s"),
    [
        pytest.param(StreamKind.KINESIS, 1, 0.2, id="of Kinesis, any lag is one"),
        pytest.param(StreamKind.DYNAMODB, 60_000, 0.9, id="the newest record of a table's shard is always old"),
        pytest.param(StreamKind.DYNAMODB, 60_001, 0.3, id="a minute behind, a third"),
        pytest.param(StreamKind.DYNAMODB, 0, 0.9, id="nothing new"),
    ],
)
def test_the_wait_between_reads(kind: StreamKind, lag_ms: int, wait_s: float) -> None:
    pacing = polling_intervals(settings_of(idleTimeBetweenReadsInMillis="900"), kind)
    assert delay_s(pacing, Pace(100.0, lag_ms), 100.0, 0.5) == pytest.approx(wait_s)
