"""Names, gauges and attributes of the library's own OpenTelemetry backend, asked of its jar."""

from __future__ import annotations

import subprocess

from mld.metrics.registry import JAVA_METRICS
from mld.serving.otlp import ATTRIBUTES, Instrument, instrument_of, otel_name
from tests.interop.java import JVM_OPTIONS
from tests.interop.kcl import fetch
from tests.support import fetch_java_kcl
from tests.support.servers import require

TIMEOUT_S = 120
ODD = ["Foo..Bar", "Retry3Count", "GSIReadyStatus", "GetLease:Error", "Time", "HTTPRequests.Time", "a b", "x" * 300]


def test_every_name_is_that_of_the_library() -> None:
    java, path = fetch_java_kcl.java(), fetch.class_path()
    require(java is not None and path is not None, "the library 3.5.1 (`make interop`)")
    names = [*ODD, *sorted({metric.name for metric in JAVA_METRICS})]
    command = [str(java), *JVM_OPTIONS, "-cp", str(path), "OtelNames"]
    said = subprocess.run(
        command, input="\n".join(names), capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    ).stdout.splitlines()
    theirs = dict(zip(names, [line.rsplit(" ", 1) for line in said if line.endswith((" true", " false"))], strict=True))
    assert {name: otel_name(name) for name in names} == {name: told for name, (told, _) in theirs.items()}
    assert {line.partition(" is ")[::2] for line in said if " is " in line} == set(ATTRIBUTES.items())
    units = {metric.name: metric.unit for metric in JAVA_METRICS}
    gauges = {name for name, unit in units.items() if instrument_of(name, unit) is Instrument.GAUGE}
    assert gauges == {name for name in units if theirs[name][1] == "true"}
