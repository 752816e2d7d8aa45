"""Lines in CloudWatch's embedded metric format: their form, and what happens to who does not read them."""

from __future__ import annotations

import json
import os
import sys

import jsonschema
import pytest

from mld.errors import MetricsError, StartupError
from mld.metrics.instruments import StatisticSet
from mld.views import emf
from mld.views.datums import Datum
from mld.views.emf import EmfOutput, standard_output
from mld.views.emf_lines import emf_lines
from mld.views.periods import Period

PROCESS = (("Operation", "ProcessTask"), ("ShardId", "shardId-000000000000"))
ONE, SEVERAL = StatisticSet(1, 7, 7, 7), StatisticSet(3, 12, 1, 8)
PERIOD = Period(60.0, 120.0)
# The shape that Amazon publishes for the member `_aws`, and the types that members it refers to may have.
SCHEMA = {
    "type": "object",
    "required": ["_aws"],
    "properties": {
        "_aws": {
            "type": "object",
            "required": ["Timestamp", "CloudWatchMetrics"],
            "properties": {
                "Timestamp": {"type": "integer"},
                "CloudWatchMetrics": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["Namespace", "Dimensions", "Metrics"],
                        "additionalProperties": False,
                        "properties": {
                            "Namespace": {"type": "string", "minLength": 1, "maxLength": 1024},
                            "Dimensions": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "array",
                                    "minItems": 1,
                                    "maxItems": 30,
                                    "items": {"type": "string", "minLength": 1, "maxLength": 250},
                                },
                            },
                            "Metrics": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": 100,
                                "items": {
                                    "type": "object",
                                    "required": ["Name"],
                                    "additionalProperties": False,
                                    "properties": {
                                        "Name": {"type": "string", "minLength": 1, "maxLength": 1024},
                                        "Unit": {"enum": ["Count", "Milliseconds", "Bytes", "None"]},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        }
    },
}


def check_line(line: str) -> None:
    """Valid by the schema, and everything that it refers to is there and has the right type."""
    document = json.loads(line)
    jsonschema.validate(document, SCHEMA)
    assert len(line) < 256 * 1024
    for directive in document["_aws"]["CloudWatchMetrics"]:
        for name in directive["Dimensions"][0]:
            assert isinstance(document[name], str)
        for metric in directive["Metrics"]:
            value = document[metric["Name"]]
            assert isinstance(value, int | float) or set(value) == {"Max", "Min", "Count", "Sum"}


def test_a_line_holds_the_metrics_of_one_set_of_dimensions() -> None:
    datums = [
        Datum("RecordsProcessed", PROCESS, "Count", SEVERAL),
        Datum("Time", PROCESS, "Milliseconds", ONE),
        Datum("Time", (("Operation", "RenewAllLeases"),), "Milliseconds", ONE),
    ]
    first, second = emf_lines("clicks", datums, 60.5)
    check_line(first)
    check_line(second)
    assert json.loads(first) == {
        "_aws": {
            "Timestamp": 60_500,
            "CloudWatchMetrics": [
                {
                    "Namespace": "clicks",
                    "Dimensions": [["Operation", "ShardId"]],
                    "Metrics": [
                        {"Name": "RecordsProcessed", "Unit": "Count"},
                        {"Name": "Time", "Unit": "Milliseconds"},
                    ],
                }
            ],
        },
        "Operation": "ProcessTask",
        "ShardId": "shardId-000000000000",
        "RecordsProcessed": {"Max": 8, "Min": 1, "Count": 3, "Sum": 12},
        "Time": 7,
    }


def test_a_line_has_at_most_a_hundred_metrics() -> None:
    lines = list(emf_lines("clicks", [Datum(f"m{n}", PROCESS, "Count", ONE) for n in range(101)], 0.0))
    for line in lines:
        check_line(line)
    assert [len(json.loads(line)["_aws"]["CloudWatchMetrics"][0]["Metrics"]) for line in lines] == [100, 1]


def test_a_name_with_quotes_and_line_breaks_stays_one_line() -> None:
    (line,) = emf_lines('a"b', [Datum("m", (("Operation", "x\ny"),), "Count", ONE)], 0.0)
    assert "\n" not in line
    check_line(line)


async def test_lines_go_where_standard_output_goes() -> None:
    reading, writing = os.pipe()
    output = EmfOutput(writing, namespace="clicks")
    await output.publish([Datum("m", PROCESS, "Count", ONE)], PERIOD)
    await output.close()
    os.close(writing)
    with os.fdopen(reading) as file:
        (line,) = file.read().splitlines()
    check_line(line)


async def test_a_reader_who_has_gone_is_an_error_of_metrics() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = EmfOutput(writing, namespace="clicks")
    with pytest.raises(MetricsError, match="standard output"):
        await output.publish([Datum("m", PROCESS, "Count", ONE)], PERIOD)
    await output.close()
    os.close(writing)


async def test_a_reader_who_does_not_read_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emf, "WRITE_TIMEOUT_S", 0.05)
    reading, writing = os.pipe()
    output = EmfOutput(writing, namespace="clicks")
    many = [Datum("m", (("Operation", f"{n:01000}"),), "Count", ONE) for n in range(1000)]
    for _ in range(2):
        with pytest.raises(MetricsError, match="nobody reads"):
            await output.publish(many, PERIOD)
    os.close(reading)  # ends the thread that writes
    await output.close()
    os.close(writing)


def test_a_closed_standard_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(StartupError, match="standard output, which is closed"):
        standard_output()
