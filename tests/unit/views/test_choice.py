"""What a file asks of metrics: whether anything is sent, and what is missing for it."""

from __future__ import annotations

import sys

import pytest

from mld.properties.remarks import Level
from mld.views.choice import missing_extras, sends_metrics
from tests.support.fleet import settings_of


@pytest.mark.parametrize(
    ("keys", "sends"),
    [
        ({}, True),
        ({"mld__metrics": "otlp"}, True),
        ({"mld__metrics": "prometheus"}, False),
        ({"mld__metrics": "none"}, False),
        ({"metricsLevel": "NONE"}, False),
    ],
)
def test_what_is_scraped_is_not_sent(keys: dict[str, str], sends: bool) -> None:
    assert sends_metrics(settings_of(**keys)) is sends


@pytest.mark.parametrize(
    ("keys", "module", "level"),
    [
        pytest.param({"mld__metrics": "otlp"}, "opentelemetry", Level.ERROR, id="nothing could be sent"),
        pytest.param({"mld__http": "127.0.0.1:1"}, "prometheus_client", Level.WARNING, id="one page less"),
        pytest.param({}, "prometheus_client", None, id="nobody can scrape anyway"),
        pytest.param({}, "opentelemetry", None, id="not asked for"),
    ],
)
def test_a_package_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, str], module: str, level: Level | None
) -> None:
    settings = settings_of(**keys)
    assert missing_extras(settings, "app.properties") == []
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    remarks = missing_extras(settings, "app.properties")
    assert [remark.level for remark in remarks] == ([] if level is None else [level])
    assert all(remark.key == "mld.metrics" and "pip install 'mld-kinesis[" in remark.remedy for remark in remarks)
