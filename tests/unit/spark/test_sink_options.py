"""Options of tables that would have no effect are refused before the first record."""

from __future__ import annotations

import pytest

from mld.processors.spark.sink_port import SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.factory import make_sink

PATHS = {"delta": "/lake/t", "iceberg": "lake.db.t"}


@pytest.mark.parametrize(
    ("format", "option"),
    [
        ("delta", "replaceWhere"),
        ("delta", "partitionOverwriteMode"),
        ("delta", "txnVersion"),
        ("iceberg", "branch"),
        ("iceberg", "snapshot-property.team"),
    ],
)
def test_an_option_that_an_append_does_not_have_is_refused(format, option):
    with pytest.raises(SinkRefused, match=f"sink.out.options.{option} has no effect"):
        make_sink(SinkSpec("out", format, PATHS[format], {option: "x"}), None)  # type: ignore[arg-type]


def test_an_option_of_the_writer_is_taken_by_an_append_and_refused_by_a_merge():
    options = {"target-file-size-bytes": "1000"}
    make_sink(SinkSpec("out", "iceberg", "lake.db.t", options), None)  # type: ignore[arg-type]
    with pytest.raises(SinkRefused, match="a batch is one MERGE to the table"):
        make_sink(SinkSpec("out", "iceberg", "lake.db.t", options, mode="merge", keys=("id",)), None)  # type: ignore[arg-type]
