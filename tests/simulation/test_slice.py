"""The slice of seeds that runs with every change; `make simulate SEEDS=n MODE=m` runs as many as you like."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLICES = {
    "2x": (0, 12, 120),
    "3x": (0, 3, 24),
    "3xbeat": (0, 2, 16),
    "3xmix": (0, 2, 12),
    "live": (0, 3, 24),
    "migrate": (1, 1, 4),
    "fanout": (0, 2, 10),
}
"""By mode: the first seed, how many `make test` runs, and how many `make test-all`."""
QUICK = [pytest.param(mode, start, few, id=mode) for mode, (start, few, _) in SLICES.items()]
REST = [
    pytest.param(mode, start + few, many - few, id=f"{mode}-rest", marks=pytest.mark.full)
    for mode, (start, few, many) in SLICES.items()
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "start", "seeds"), [*QUICK, *REST])
def test_a_fleet_keeps_every_promise_in_a_slice_of_seeds(mode: str, start: int, seeds: int) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--mode", mode, "--jobs", "2"]
    command += ["--start", str(start), "--seeds", str(seeds)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{seeds} passed, 0 failed" in run.stdout
