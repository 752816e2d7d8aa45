"""The same checks of polling and resharding against a Kinesis we did not write.

An emulator and a client by the same authors share their misreadings; kinesis-local does not share ours. The suite runs
in a pytest of its own, because the endpoint is chosen once for a whole run; what it leaves out, and why, stands in
`tests.conformance_aws.exclusions`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.servers import ROOT, ServerProcess

pytestmark = pytest.mark.full

SUITE_TIMEOUT_S = 1_200  # what is waited for inside has bounds of its own
POLLING_AND_RESHARDING = ("test_streams.py", "test_shards.py", "test_records.py", "test_consumers.py")


def run_suite(server: ServerProcess, name: str, files: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MLD_CONFORMANCE_ENDPOINT": server.endpoint, "MLD_CONFORMANCE_TARGET": name}
    paths = [str(ROOT / "tests" / "conformance_aws" / file) for file in files]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *paths]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SUITE_TIMEOUT_S, check=False
    )


@pytest.mark.node
@pytest.mark.timeout(SUITE_TIMEOUT_S + 60)
def test_an_independent_kinesis_agrees_on_polling_and_resharding(kinesis_local: ServerProcess) -> None:
    outcome = run_suite(kinesis_local, "kinesis-local", POLLING_AND_RESHARDING)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]


@pytest.mark.ministack
@pytest.mark.timeout(SUITE_TIMEOUT_S + 60)
def test_an_independent_dynamodb_agrees_on_what_leases_need(ministack: ServerProcess) -> None:
    outcome = run_suite(ministack, "ministack", ("test_dynamodb.py",))
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-2000:]
