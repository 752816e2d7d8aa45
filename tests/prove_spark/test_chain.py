"""One run over the whole chain with a few deaths; `make prove-spark PROVE_ARGS="--layouts chain"` draws its own."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("pyspark")

from tests.prove_spark.chain import ChainRun
from tests.prove_spark.runs import Machine
from tests.support.servers import EmbeddedAws

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("java") is None, reason="needs a JDK 17"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_every_record_exactly_once_over_the_whole_chain(tmp_path):
    machine = Machine()
    try:
        with EmbeddedAws() as aws:
            rounds = ("child", "split", "host", "move", "change")
            outcome = ChainRun(3, machine, tmp_path / "run", aws, rounds=rounds).play()
    finally:
        machine.jvm.kill()
    assert outcome.exactly_once, outcome
    assert sum(outcome.killed.values()) >= 3, outcome
