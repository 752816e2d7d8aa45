"""A few runs of the proof; `make prove-spark PROVE_ARGS='--layouts jdbc,naive-jdbc'` runs as many as wanted."""

from __future__ import annotations

import os

import pytest

from tests.prove_spark.jdbc_runs import NAIVE_JDBC, STAGES, JdbcRun
from tests.prove_spark.runs import Machine
from tests.support.databases import Postgres
from tests.support.fetch_databases import DRIVERS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif("MLD_JDBC" not in os.environ, reason="make test-jdbc"),
]
NAIVE_SEEDS = range(4)


@pytest.fixture(scope="module")
def database():
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def machine():
    made = Machine(DRIVERS)
    yield made
    made.kill_spare()
    made.jvm.kill()


@pytest.mark.parametrize("stage", STAGES)
def test_every_record_exactly_once_through_a_kill_at(stage, machine, database, tmp_path):
    run = JdbcRun(0, machine, tmp_path / "run", database, only=stage)
    outcome = run.play()
    assert outcome.killed[stage], "it has to die for the test to say anything"
    assert outcome.exactly_once, outcome


def test_a_plain_append_doubles_records_so_the_proof_bites(machine, database, tmp_path):
    """The first seed that shows it is enough."""
    runs = (JdbcRun(seed, machine, tmp_path / str(seed), database, NAIVE_JDBC) for seed in NAIVE_SEEDS)
    assert any(run.play().duplicates for run in runs)
