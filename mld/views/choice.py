"""What a file asks for that is not there without an extra; whether metrics are sent. Imports none of the packages."""

from __future__ import annotations

from mld import pip_install
from mld.core.extras import is_installed
from mld.properties.remarks import Level, Remark
from mld.properties.settings import Settings
from mld.properties.values import MetricsLevel, MetricsOutput

KEY = "mld.metrics"


def sends_metrics(settings: Settings) -> bool:
    """Return whether anything is to be sent anywhere; what is scraped is not sent."""
    sent = set(settings.metrics.outputs) - {MetricsOutput.PROMETHEUS}
    return bool(sent) and settings.metrics.level is not MetricsLevel.NONE


def missing_extras(settings: Settings, file_name: str) -> list[Remark]:
    """Return an error for an output that could not send anything, a warning for a page that could not be shown."""
    remarks = []
    if MetricsOutput.OTLP in settings.metrics.outputs and not is_installed("opentelemetry.exporter.otlp.proto.http"):
        why, remedy = (
            "has otlp, which needs packages that are not installed",
            f"{pip_install('otel')}, or remove otlp",
        )
        remarks.append(Remark(Level.ERROR, KEY, file_name, why, remedy))
    if (
        settings.serving.http is not None
        and MetricsOutput.PROMETHEUS in settings.metrics.outputs
        and not is_installed("prometheus_client")
    ):
        why = "has prometheus, and /metrics of mld.http needs a package that is not installed"
        remarks.append(Remark(Level.WARNING, KEY, file_name, why, f"{pip_install('metrics')}, or remove prometheus"))
    return remarks
