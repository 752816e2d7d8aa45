"""Where metrics go, by the file: the list, its default, and what does not go together. Rules: metrics#outputs."""

from __future__ import annotations

import pytest

from mld.properties.aws_domains import is_of_aws
from mld.properties.remarks import ConfigurationError, Level
from mld.properties.values import MetricsOutput
from tests.unit.properties.conftest import FIRST_LINE_AFTER_MINIMUM, Configure, remarks_on

CLOUDWATCH, PROMETHEUS = MetricsOutput.CLOUDWATCH, MetricsOutput.PROMETHEUS
STAND_IN = "kinesisEndpoint=http://127.0.0.1:4567"


@pytest.mark.parametrize(
    ("text", "env", "outputs"),
    [
        pytest.param("", {}, (CLOUDWATCH, PROMETHEUS), id="as Java"),
        pytest.param(STAND_IN, {}, (PROMETHEUS,), id="a stand-in costs nobody money"),
        pytest.param(f"{STAND_IN}\ncloudWatchEndpoint=http://h:1", {}, (CLOUDWATCH, PROMETHEUS), id="whole stand-in"),
        pytest.param(STAND_IN, {"AWS_ENDPOINT_URL": "http://h:1"}, (CLOUDWATCH, PROMETHEUS), id="environment"),
        pytest.param(
            "kinesisEndpoint=https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com",
            {},
            (CLOUDWATCH, PROMETHEUS),
            id="endpoint in a VPC",
        ),
        pytest.param(f"{STAND_IN}\nmld.metrics=cloudwatch", {}, (CLOUDWATCH,), id="asked for"),
        pytest.param("mld.metrics = Prometheus , cloudwatch,prometheus", {}, (CLOUDWATCH, PROMETHEUS), id="a list"),
        pytest.param("mld.metrics=none", {}, (), id="none"),
    ],
)
def test_the_outputs_of_a_file(
    configure: Configure, text: str, env: dict[str, str], outputs: tuple[MetricsOutput, ...]
) -> None:
    assert configure(text, env=env).settings.metrics.outputs == outputs


@pytest.mark.parametrize(
    ("text", "are_sent"),
    [
        ("", True),
        ("mld.metrics=prometheus", False),
        ("mld.metrics=none", False),
        ("metricsLevel=NONE", False),
    ],
)
def test_what_is_scraped_is_not_sent(configure: Configure, text: str, are_sent: bool) -> None:
    assert configure(text).settings.metrics.are_sent is are_sent


@pytest.mark.parametrize("text", ["cloudwhat", "cloudwatch,,prometheus", "none,prometheus", ""])
def test_a_typo_names_the_key_the_place_and_the_remedy(configure: Configure, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure(f"mld.metrics={text}")
    (remark,) = caught.value.remarks
    assert remark.key == "mld.metrics"
    assert remark.place.endswith(f":{FIRST_LINE_AFTER_MINIMUM}")
    assert "cloudwatch, prometheus," in remark.remedy


def test_the_output_that_was_removed_is_refused_with_the_one_to_use_now(configure: Configure) -> None:
    with pytest.raises(ConfigurationError) as caught:
        configure("mld.metrics=prometheus,emf")
    (remark,) = caught.value.remarks
    assert (remark.key, remark.level) == ("mld.metrics", Level.ERROR)
    assert "has emf, which mld no longer writes" in remark.message
    assert "write cloudwatch" in remark.remedy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("mld.metrics=prometheus", "mld.http", id="nobody can scrape"),
        pytest.param("mld.metrics=cloudwatch\nmetricsLevel=NONE", "nothing is sent", id="nothing to send"),
        pytest.param(STAND_IN, "prometheus only", id="a stand-in"),
    ],
)
def test_what_does_not_go_together_is_said(configure: Configure, text: str, said: str) -> None:
    loaded = configure(text)
    warnings, notes = (remarks_on(loaded, "mld.metrics", level) for level in (Level.WARNING, Level.INFO))
    assert said in (notes if text == STAND_IN else warnings)[0]


def test_a_plain_file_of_java_gets_no_remark_on_metrics(configure: Configure) -> None:
    loaded = configure("metricsLevel=SUMMARY\nmetricsEnabledDimensions=Operation,ShardId\nmetricsMaxQueueSize=500")
    assert [remark for remark in loaded.remarks if "etrics" in remark.key] == []


def test_a_period_below_a_second_is_raised(configure: Configure) -> None:
    loaded = configure("metricsBufferTimeMillis=5")
    assert loaded.settings.metrics.period_s == 1.0
    assert loaded.remarks[0].level is Level.WARNING


@pytest.mark.parametrize(
    ("url", "is_aws"),
    [
        ("https://kinesis.us-east-1.amazonaws.com", True),
        ("https://kinesis.us-east-1.api.aws.:443/", True),
        ("https://amazonaws.com.evil.test", False),
        ("https://notamazonaws.com", False),
        ("http://localhost:4566", False),
    ],
)
def test_hosts_of_aws(url: str, is_aws: bool) -> None:
    assert is_of_aws(url) is is_aws
