"""Registered consumers of enhanced fan-out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance_aws.conftest import StreamHandle, Target, code_of, settle

Make = Callable[..., StreamHandle]


def test_a_consumer_is_registered_once_described_listed_and_counted(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    answer = kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="app")["Consumer"]
    described = kinesis.describe_stream_consumer(StreamARN=stream.arn, ConsumerName="app")["ConsumerDescription"]
    listed = kinesis.list_stream_consumers(StreamARN=stream.arn)["Consumers"]
    assert answer["ConsumerStatus"] == "CREATING"
    assert described["ConsumerARN"] == answer["ConsumerARN"] and described["StreamARN"] == stream.arn
    assert re.fullmatch(re.escape(stream.arn) + r"/consumer/app:\d+", answer["ConsumerARN"])
    assert [consumer["ConsumerName"] for consumer in listed] == ["app"]
    assert stream.summary()["ConsumerCount"] == 1
    again = {"StreamARN": stream.arn, "ConsumerName": "app"}
    assert code_of(kinesis.register_stream_consumer, **again) == "ResourceInUseException"


def test_a_consumer_is_creating_before_it_is_active(
    make_stream: Make, kinesis: Any, target: Target, pass_time: Callable[[float], None]
) -> None:
    if target.embedded is None:
        pytest.skip("needs the delay control")
    stream = make_stream()
    target.embedded.set_delays(consumer_s=60)
    arn = kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="app")["Consumer"]["ConsumerARN"]

    def status() -> str:
        return str(kinesis.describe_stream_consumer(ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"])

    first = status()
    pass_time(61)
    assert (first, status()) == ("CREATING", "ACTIVE")


def test_a_consumer_is_deregistered_by_stream_and_name(make_stream: Make, kinesis: Any) -> None:
    first, second = make_stream(), make_stream()
    first.consumer("app")
    second.consumer("app")
    second.consumer("other")
    kinesis.deregister_stream_consumer(StreamARN=second.arn, ConsumerName="app")
    gone = {"StreamARN": second.arn, "ConsumerName": "app"}
    settle(lambda: code_of(kinesis.describe_stream_consumer, **gone) == "ResourceNotFoundException")
    left = [c["ConsumerName"] for c in kinesis.list_stream_consumers(StreamARN=second.arn)["Consumers"]]
    assert left == ["other"]
    assert [c["ConsumerName"] for c in kinesis.list_stream_consumers(StreamARN=first.arn)["Consumers"]] == ["app"]


def test_a_consumer_is_deregistered_by_its_arn(make_stream: Make, kinesis: Any) -> None:
    stream = make_stream()
    arn = stream.consumer("app")
    kinesis.deregister_stream_consumer(ConsumerARN=arn)
    settle(lambda: code_of(kinesis.describe_stream_consumer, ConsumerARN=arn) == "ResourceNotFoundException")


def test_an_unknown_consumer_is_not_found(make_stream: Make, kinesis: Any) -> None:
    unknown = {"StreamARN": make_stream().arn, "ConsumerName": "nobody"}
    assert code_of(kinesis.describe_stream_consumer, **unknown) == "ResourceNotFoundException"
