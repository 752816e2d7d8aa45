"""The metrics of all members of a group as one exposition (`mld.daemon.group_pages`)."""

from __future__ import annotations

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from mld.daemon.group_pages import merged

ONE = '# HELP mld_records_total Records.\n# TYPE mld_records_total counter\nmld_records_total{shard="s"} 3.0\n'
OTHER = ONE.replace("3.0", "4.0")


def samples(body: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(body.decode())
    return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def test_each_value_has_the_worker_it_is_of_and_nothing_is_added_up() -> None:
    content_type, body = merged([("a-1", ONE), ("a-2", OTHER)], 2, {"a-1": 0, "a-2": 5}, "text/plain")
    assert content_type.startswith("text/plain")
    assert samples(body) == {
        ("mld_records_total", (("shard", "s"), ("worker", "a-1"))): 3.0,
        ("mld_records_total", (("shard", "s"), ("worker", "a-2"))): 4.0,
        ("mld_unit_workers_running", ()): 2.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-1"),)): 0.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-2"),)): 5.0,
    }
    assert body.decode().count("# TYPE mld_records_total") == 1


def test_what_the_supervisor_knows_is_there_when_no_worker_answers() -> None:
    assert samples(merged([], 0, {"a-1": 1}, "text/plain")[1]) == {
        ("mld_unit_workers_running", ()): 0.0,
        ("mld_unit_worker_restarts_total", (("worker", "a-1"),)): 1.0,
    }
