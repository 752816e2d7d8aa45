"""The slice of seeds that runs with every change; `make simulate SEEDS=n MODE=m` runs as many as you like."""

import pytest

from tests.simulation.run import run_seed

SLICES = {
    "2x": (0, 4, 40),
    "3x": (0, 1, 10),
    "3xhost": (0, 1, 8),
    "3xmix": (0, 1, 8),
    "live": (1, 1, 10),
    "migrate": (1, 0, 4),
    "fanout": (0, 1, 7),
    "multi-stream": (0, 1, 5),
    "wide": (1, 0, 1),
    "odd": (0, 1, 10),
    "slow": (0, 2, 12),
    "slow3x": (0, 1, 8),
}
"""By mode: the first seed, how many `make test` runs, and how many `make test-all`."""


@pytest.mark.parametrize(
    ("mode", "seed"),
    [
        pytest.param(mode, start + number, marks=() if number < few else pytest.mark.full)
        for mode, (start, few, many) in SLICES.items()
        for number in range(many)
    ],
)
def test_a_fleet_keeps_every_promise(mode: str, seed: int) -> None:
    violation = run_seed(seed, mode=mode).violation
    assert not violation, f"{violation}; replay: python -m tests.simulation --mode {mode} --trace {seed}"
