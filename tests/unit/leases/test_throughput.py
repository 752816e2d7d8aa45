"""The throughput value of a lease (metrics#lease-throughput)."""

from __future__ import annotations

from mld.leases.throughput import Throughput

INTERVAL_S = 4.0


def test_without_any_delivery_there_is_no_value() -> None:
    assert Throughput(None, INTERVAL_S).sample_kbps() is None


def test_the_first_sample_is_taken_as_it_is() -> None:
    throughput = Throughput(None, INTERVAL_S)
    throughput.record(4096)
    throughput.record(4096)
    assert throughput.sample_kbps() == 2.0


def test_after_traffic_stops_the_value_halves_down_to_zero() -> None:
    throughput = Throughput(None, INTERVAL_S)
    throughput.record(8192)
    assert [throughput.sample_kbps() for _ in range(3)] == [2.0, 1.0, 0.5]
    for _ in range(40):
        last = throughput.sample_kbps()
    assert last == 0.0


def test_a_new_holder_begins_with_the_value_of_the_old_one() -> None:
    assert Throughput(398.5, INTERVAL_S).sample_kbps() == 398.5


def test_values_are_rounded_to_six_decimals() -> None:
    throughput = Throughput(None, 3.0)
    throughput.record(1)
    assert throughput.sample_kbps() == 0.000326
