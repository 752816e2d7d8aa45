"""A few runs of the proof with every change; `make prove-spark` runs as many as wanted."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark")

from tests.prove_spark.runs import Machine, Run

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


def test_a_plain_append_doubles_records_so_the_proof_bites(machine, tmp_path):
    """The first seed that shows it is enough."""
    assert any(Run(seed, "naive", machine, tmp_path / str(seed)).play().duplicates for seed in NAIVE_SEEDS)
