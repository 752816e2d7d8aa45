"""A few runs of the proof with every change; `make prove-spark` runs as many as wanted."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark")

from tests.prove_spark.runs import Machine, Run
from tests.prove_spark.streaming_runs import StreamingRun

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SLICE = 2
NAIVE_SEEDS = range(4)


@pytest.fixture(scope="module")
def machine():
    made = Machine()
    yield made
    made.jvm.kill()


@pytest.mark.parametrize("layout", ["flat", "partitioned"])
def test_every_record_exactly_once(layout, machine, tmp_path):
    for seed in range(SLICE):
        outcome = Run(seed, layout, machine, tmp_path / str(seed)).play()
        assert outcome.exactly_once, outcome


@pytest.mark.parametrize(
    "stage", [pytest.param("inboxed", marks=[pytest.mark.spark_slice, pytest.mark.full]), "published", "processed"]
)
def test_streaming_through_kills_at(stage, machine, tmp_path):
    """After the publication in the inbox; before the query's commit, with its batch in the sink; and after it."""
    outcome = StreamingRun(0, machine, tmp_path / "run", only=stage).play()
    assert outcome.killed[stage], "it has to die for the test to say anything"
    assert outcome.exactly_once, outcome


def test_a_plain_append_doubles_records_so_the_proof_bites(machine, tmp_path):
    """The first seed that shows it is enough."""
    assert any(Run(seed, "naive", machine, tmp_path / str(seed)).play().duplicates for seed in NAIVE_SEEDS)
