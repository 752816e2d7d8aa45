"""The rule configuration#choice-of-retrieval."""

from __future__ import annotations

import pytest

from mld.properties.remarks import Level
from tests.unit.properties.conftest import Configure, problems, remarks_on

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/app:1700000000"


@pytest.mark.parametrize(
    ("lines", "by_fan_out", "says"),
    [
        ("retrievalMode=POLLING", False, ""),
        ("retrievalMode=POLLING\nmaxRecords=5", False, ""),
        ("retrievalMode=FANOUT\nmaxRecords=5", True, ""),
        ("", True, ""),
        ("maxRecords=0", True, ""),
        ("millisBehindLatestThresholdForReducedTps=0", True, ""),
        ("pollingConfig.maxRecords=10000", False, "because maxRecords is set"),
        ("idleTimeBetweenReadsInMillis=1500", False, "because idleTimeBetweenReadsInMillis is set"),
        ("retryGetRecordsInSeconds=0", False, "because retryGetRecordsInSeconds is set"),
        (
            "maxGetRecordsThreadPool=0\nmaxRecords=5",
            False,
            "because maxGetRecordsThreadPool, maxRecords is set",
        ),
    ],
)
def test_the_way_of_reading_follows_the_keys(configure: Configure, lines: str, by_fan_out: bool, says: str) -> None:
    loaded = configure(lines, without=["retrievalMode"])
    assert loaded.settings.reader.by_fan_out is by_fan_out
    warnings = remarks_on(loaded, "retrievalMode")
    assert len(warnings) == bool(says)
    assert says in "".join(warnings)


@pytest.mark.parametrize(
    ("name", "arn", "problem"),
    [
        ("a.b_c-1", None, ""),
        ("my app", ARN, ""),  # the name is not used
        ("app", ARN.replace("stream/s/", "stream/other/"), "of the stream other, but s is read"),
        ("app", "arn:aws:kinesis:eu-west-1:123456789012:stream/s", "no ARN of a consumer"),
        ("app", ARN.replace("aws:", "aws-cn:"), ""),
    ],
)
def test_a_consumer_is_one_of_the_stream(configure: Configure, name: str, arn: str | None, problem: str) -> None:
    lines = f"fanoutConfig.consumerName={name}" + ("" if arn is None else f"\nfanoutConfig.consumerArn={arn}")
    if problem:
        (found,) = problems(lambda: configure(lines, without=["retrievalMode"]))
        assert problem in found
        return
    loaded = configure(lines, without=["retrievalMode"])
    assert f"as the consumer {arn or name}" in remarks_on(loaded, "retrievalMode", Level.INFO)[0]
    assert len(remarks_on(loaded, "fanoutConfig.consumerName", Level.INFO)) == (arn is not None)


def test_keys_of_the_other_mode_are_pointed_out(configure: Configure) -> None:
    polling = configure("fanoutConfig.retryBackoffMillis=5")
    assert "by polling" in remarks_on(polling, "fanoutConfig.retryBackoffMillis", Level.INFO)[0]
    fan_out = configure("retrievalMode=FANOUT\nmaxRecords=5", without=["retrievalMode"])
    assert "by enhanced fan-out" in remarks_on(fan_out, "maxRecords", Level.INFO)[0]
