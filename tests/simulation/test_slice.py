"""The slice of seeds that runs with every change; `make simulate SEEDS=n` runs as many as you like."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 120
START = 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_keeps_every_promise_in_a_slice_of_seeds():
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS), "--start", str(START), "--jobs", "2"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{SEEDS} passed, 0 failed" in run.stdout
