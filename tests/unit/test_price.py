"""The formula of `mld check` against what the bill of the benchmarks counts in virtual time."""

from __future__ import annotations

import pytest

from mld.check.price import Rates, Units, checkpoint_dollars, units
from mld.core.periods import AUDIT_PERIOD_S
from tests.benchmarks.bill import SCANS, measure, total
from tests.support.fleet import settings_of
from tests.virtual_time import run_virtual

TOLERANCE = 0.03
SETTLE_S, WINDOW_S = 900.0, 360.0
"""At rest until then; all periods of the settings below divide the window, nearly."""
V3 = {"clientVersionConfig": "CLIENT_VERSION_CONFIG_3X"}


@pytest.mark.parametrize(
    ("leases", "workers", "keys"),
    [
        (1, 1, {}),
        pytest.param(1, 4, {}, marks=pytest.mark.full),
        pytest.param(6, 3, {}, marks=pytest.mark.full),
        pytest.param(64, 1, {}, marks=pytest.mark.full),
        pytest.param(6, 1, {"failoverTimeMillis": "30000"}, marks=pytest.mark.full),
        pytest.param(
            6,
            3,
            {"failoverTimeMillis": "30000", "workerMetricsReporterFreqInMillis": "15000"},
            marks=pytest.mark.full,
        ),
        pytest.param(6, 2, {"leaseAssignmentIntervalMillis": "10000"}, marks=pytest.mark.full),
    ],
)
def test_the_formula_says_what_a_fleet_at_rest_is_charged(leases: int, workers: int, keys: dict[str, str]) -> None:
    costs = run_virtual(measure(leases, workers, settle_s=SETTLE_S, window_s=WINDOW_S, **keys))
    counted, scans = total(costs), costs[SCANS]
    told = units(leases, workers, Rates.of(settings_of(**V3, **keys)))
    # What an audit has just read serves the assignment run after it. How long the start took says which comes first.
    served = 3600.0 / AUDIT_PERIOD_S * scans.read_units / scans.requests
    assert told.read in (
        pytest.approx(counted.read_units, rel=TOLERANCE),
        pytest.approx(counted.read_units + served, rel=TOLERANCE),
    )
    assert told.write == pytest.approx(counted.write_units, rel=TOLERANCE)


def test_the_price_of_a_million_units() -> None:
    a_month_of = 1e6 / 730
    assert Units(read=0.0, write=a_month_of).dollars_per_month == pytest.approx(0.625)
    assert Units(read=a_month_of, write=0.0).dollars_per_month == pytest.approx(0.125)
    assert checkpoint_dollars() == pytest.approx(3600 * 730 * 0.625e-6)


def test_longer_leases_cost_a_third_of_the_renewals() -> None:
    rates = Rates.of(settings_of(**V3))
    patient = rates.with_lease_duration(30.0)
    assert patient == Rates.of(settings_of(**V3, failoverTimeMillis="30000"))
    assert units(100, 1, patient).write < units(100, 1, rates).write * 0.34
