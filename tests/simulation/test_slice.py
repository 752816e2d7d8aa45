"""The slice of seeds that runs with every change; `make simulate SEEDS=n MODE=m` runs as many as you like."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLICES = {
    "2x": (0, 120),
    "3x": (0, 24),
    "3xbeat": (0, 16),
    "3xmix": (0, 12),
    "live": (0, 24),
    "migrate": (1, 4),
    "fanout": (0, 10),
}
"""The first seed and how many, by mode."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", SLICES)
def test_a_fleet_keeps_every_promise_in_a_slice_of_seeds(mode: str) -> None:
    start, seeds = SLICES[mode]
    command = [sys.executable, "-m", "tests.simulation", "--mode", mode, "--jobs", "2"]
    command += ["--start", str(start), "--seeds", str(seeds)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{seeds} passed, 0 failed" in run.stdout
