"""Conversion, range and zero rule of single values (configuration#value-conversion, configuration#zero-rule)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mld.properties.conversion import convert, trim
from mld.properties.keys import BY_NAME
from mld.properties.remarks import Level
from mld.properties.value_parsers import BadValue
from mld.properties.values import (
    ClientVersionConfig,
    InitialPositionKind,
    InitialPositionSetting,
    MetricsLevel,
    StreamArn,
)
from tests.unit.properties.conftest import Configure, problems, remarks_on


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("maxRecords", "+0042", 42),
        ("logWarningForTaskAfterMillis", "9223372036854775807", 2**63 - 1),
        ("workerMetricsEMAAlpha", "1e-1", 0.1),
        ("workerMetricsEMAAlpha", ".5d", 0.5),
        ("leaseTablePitrEnabled", "Yes", True),
        ("leaseTablePitrEnabled", "OFF", False),
        ("metricsLevel", "summary", MetricsLevel.SUMMARY),
        ("clientVersionConfig", "client_version_config_3x", ClientVersionConfig.VERSION_3X),
        ("initialPositionInStream", "latest", InitialPositionSetting(InitialPositionKind.LATEST)),
        ("initialPositionInStreamExtended", "1", InitialPositionSetting(InitialPositionKind.AT_TIMESTAMP, 1)),
        ("staleWorkerMetricsEntryCleanupDuration", "p1dt2h3m4.5s", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("staleWorkerMetricsEntryCleanupDuration", "PT0S", timedelta(0)),
        ("workerMetricsTags", " a = b , c=d", (("a", "b"), ("c", "d"))),
        ("workerMetricsTags", "", ()),
        ("metricsEnabledDimensions", "{'ShardId', Operation}", ("Operation", "ShardId")),
        ("metricsEnabledDimensions", "", ()),
        ("kinesisEndpoint", "http://127.0.0.1:4567", "http://127.0.0.1:4567"),
    ],
)
def test_good_values(name: str, text: str, expected: object) -> None:
    assert convert(BY_NAME[name], trim(text)) == expected


BAD = [
    ("maxRecords", "100nf"), ("maxRecords", "1.5"), ("maxRecords", "1_000"), ("maxRecords", "1,000"),
    ("maxRecords", "15L"), ("maxRecords", "0x10"), ("maxRecords", ""), ("maxRecords", "2147483648"),
    ("maxRecords", "\u0661\u0662"), ("failoverTimeMillis", "9223372036854775808"), ("failoverTimeMillis", "9" * 5000),
    ("workerMetricsEMAAlpha", "NaN"), ("workerMetricsEMAAlpha", "Infinity"), ("workerMetricsEMAAlpha", "1e999"),
    ("leaseTablePitrEnabled", "tru"), ("leaseTablePitrEnabled", ""), ("retrievalMode", "POLL"), ("retrievalMode", ""),
    ("initialPositionInStream", "AT_TIMESTAMP"), ("initialPositionInStream", "OLDEST"),
    ("initialPositionInStreamExtended", "2026-01-01"), ("initialPositionInStreamExtended", "1767225600000"),
    ("initialPositionInStreamExtended", "-1"), ("staleWorkerMetricsEntryCleanupDuration", "P1M"),
    ("staleWorkerMetricsEntryCleanupDuration", "P"), ("staleWorkerMetricsEntryCleanupDuration", "PT"),
    ("staleWorkerMetricsEntryCleanupDuration", "-PT1S"), ("workerMetricsTags", "a"), ("workerMetricsTags", "a=b=c"),
    ("workerMetricsTags", "=v"), ("kinesisEndpoint", "localhost:4567"), ("kinesisEndpoint", ""),
    ("kinesisEndpoint", "http://"), ("kinesisEndpoint", "http://h:99999"), ("kinesisEndpoint", "http://[::1"),
    ("regionName", ""), ("regionName", "eu west 1"), ("streamArn", "arn:aws:kinesis:eu-west-1:1234:stream/x"),
    ("workerId", "a\0b"), ("workerId", "\ud800"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), BAD)
def test_bad_values_are_refused(name: str, text: str) -> None:
    with pytest.raises(BadValue) as caught:
        convert(BY_NAME[name], text)
    assert caught.value.message


@given(st.sampled_from([key for key in BY_NAME.values() if key.kind.name != "CREDENTIALS"]), st.text())
def test_no_text_breaks_a_conversion(key: object, text: str) -> None:
    try:
        convert(key, trim(text))  # type: ignore[arg-type]
    except BadValue as error:
        assert error.message


def test_milliseconds_for_seconds_get_the_right_number_as_remedy(configure: Configure) -> None:
    with pytest.raises(Exception, match="write epoch seconds: 1767225600"):
        configure("initialPositionInStreamExtended=1767225600000")


@pytest.mark.parametrize(
    ("arn", "region", "name"),
    [
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/orders", "eu-west-1", "orders"),
        ("arn:aws-cn:kinesis:cn-north-1:123456789012:stream/o.r_d-1", "cn-north-1", "o.r_d-1"),
        ("arn:aws:kinesis:eu-west-1:123456789012:stream/orders/consumer/c:1", "eu-west-1", "orders"),
    ],
)
def test_an_arn_yields_region_name_and_the_arn_of_the_stream(arn: str, region: str, name: str) -> None:
    parsed = StreamArn.parse(arn)
    assert parsed is not None
    assert (parsed.region, parsed.name) == (region, name)
    assert parsed.text.endswith(f":stream/{name}")


@pytest.mark.parametrize(
    "what", ["kinesis:{region}:123456789012:stream/s", "dynamodb:{region}:123456789012:table/t/stream/l"]
)
@pytest.mark.parametrize(
    ("partition", "region", "of_region"),
    [
        ("aws", "eu-west-1", None),
        ("aws-cn", "cn-north-1", None),
        ("aws-us-gov", "us-gov-west-1", None),
        ("aws-iso", "us-iso-east-1", None),
        ("aws-cn", "eu-west-1", "aws"),
        ("aws", "cn-north-1", "aws-cn"),
        ("aws-cn", "us-gov-west-1", "aws-us-gov"),
    ],
)
def test_partition_and_region_of_an_arn_agree(
    configure: Configure, what: str, partition: str, region: str, of_region: str | None
) -> None:
    line = f"streamArn=arn:{partition}:{what.format(region=region)}"
    if of_region is None:
        configure(line, [f"regionName={region}"], without=["streamName"])
        return
    with pytest.raises(Exception, match=f"partition {partition}, but its region {region} is in {of_region}"):
        configure(line, [f"regionName={region}"], without=["streamName"])


_KEY_BYTES = "as a key of the lease table and a dimension it may have 1024"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("timeoutInSeconds=0", "timeoutInSeconds is out of range: '0'"),
        ("timeoutInSeconds=-5", "timeoutInSeconds is out of range: '-5'"),
        ("timeoutInSeconds=", "timeoutInSeconds is empty"),
        ("maxRecords=10001", "maxRecords is out of range: '10001'"),
        ("failoverTimeMillis=99", "failoverTimeMillis is out of range: '99'"),
        ("maxLeasesForWorker=-1", "maxLeasesForWorker is out of range: '-1'"),
        ("shutdownGraceMillis=-1", "shutdownGraceMillis is out of range: '-1'"),
        ("mld.protocolVersion=3", "mld.protocolVersion is out of range: '3'"),
        ("workerId=", "workerId is empty"),
        (f"workerId={'w' * 3000}", f"workerId has 3000 bytes; {_KEY_BYTES}"),
        (f"workerId={'ä' * 513}", f"workerId has 1026 bytes; {_KEY_BYTES}"),
    ],
)
def test_values_out_of_range_are_errors(configure: Configure, line: str, problem: str) -> None:
    assert problems(lambda: configure(line)) == [problem]


def test_zero_means_not_set_for_primitive_keys_with_a_warning(configure: Configure) -> None:
    loaded = configure("failoverTimeMillis=0\nmaxRecords=0")
    assert loaded.settings.leases.duration_s == 10.0
    assert loaded.settings.reader.records_max == 10_000
    assert remarks_on(loaded, "failoverTimeMillis") == ["0 means not set, as in Java; 10000 is used; remove the line"]


def test_zero_is_taken_as_it_is_where_it_has_a_meaning(configure: Configure) -> None:
    lines = ("logWarningForTaskAfterMillis=0", "mld.childRestartBackoffMillis=0")
    loaded = configure("\n".join((*lines, "leaseTableScanTotalSegments=0")))
    assert loaded.settings.child.warn_after_s == 0
    assert loaded.settings.child.restart_backoff_s == 0
    assert loaded.remarks == ()


def test_a_grace_of_zero_is_taken_with_a_warning(configure: Configure) -> None:
    loaded = configure("shutdownGraceMillis=0")
    assert loaded.settings.shutdown_grace_s == 0
    assert remarks_on(loaded, "shutdownGraceMillis")


@pytest.mark.parametrize("value", ["199", "1", "-7"])
def test_too_small_an_idle_time_is_raised_with_a_warning(configure: Configure, value: str) -> None:
    loaded = configure(f"idleTimeBetweenReadsInMillis={value}")
    assert loaded.settings.reader.idle_interval_s == 0.2
    assert "200 is used" in remarks_on(loaded, "idleTimeBetweenReadsInMillis")[0]


def test_lease_cleanup_can_be_switched_off(configure: Configure) -> None:
    assert configure("cleanupLeasesUponShardCompletion=false").settings.shards.cleans_up is False


def test_values_are_trimmed(configure: Configure) -> None:
    loaded = configure("tableName =  leases \t\nretrievalMode=polling \nleaseTablePitrEnabled=true ")
    assert loaded.settings.lease_table.name == "leases"
    assert loaded.settings.lease_table.point_in_time_recovery is True


def test_keys_without_effect_are_mentioned_but_are_no_warning(configure: Configure) -> None:
    loaded = configure("processingLanguage=python/3.11\nmaxActiveThreads=3")
    assert {remark.level for remark in loaded.remarks} == {Level.INFO}
    assert {remark.key for remark in loaded.remarks} == {"processingLanguage", "maxActiveThreads"}
