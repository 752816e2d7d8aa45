"""The rule configuration#choice-of-retrieval."""

from __future__ import annotations

import pytest

from properties.errors import ConfigurationError
from properties.remarks import Level
from properties.retrieval import choose_retrieval, consumer_problem
from properties.values import RetrievalMode
from tests.unit.properties.conftest import Configure, remarks_on

DEFAULT, POLLING, FANOUT = RetrievalMode.DEFAULT, RetrievalMode.POLLING, RetrievalMode.FANOUT


@pytest.mark.parametrize(
    ("mode", "keys", "available", "chosen", "says", "is_error"),
    [
        (POLLING, [], True, POLLING, "", False),
        (POLLING, ["maxRecords"], False, POLLING, "", False),
        (FANOUT, ["maxRecords"], True, FANOUT, "", False),
        (DEFAULT, [], True, FANOUT, "", False),
        (DEFAULT, ["maxRecords"], True, POLLING, "maxRecords is set", False),
        (DEFAULT, ["maxRecords"], False, POLLING, "maxRecords is set", False),
        (DEFAULT, [], False, POLLING, "it polls instead", False),
        (FANOUT, [], False, FANOUT, "not possible", True),
    ],
)
def test_the_mode_follows_the_keys(
    mode: RetrievalMode, keys: list[str], available: bool, chosen: RetrievalMode, says: str, is_error: bool
) -> None:
    choice = choose_retrieval(mode, keys, fan_out_available=available)
    assert (choice.mode, choice.is_error) == (chosen, is_error)
    assert bool(choice.problem) == bool(says)
    assert says in choice.problem


@pytest.mark.parametrize(
    ("line", "selecting"),
    [
        ("retryGetRecordsInSeconds=0", ("retryGetRecordsInSeconds",)),
        ("maxGetRecordsThreadPool=0", ("maxGetRecordsThreadPool",)),
        ("maxRecords=0", ()),
        ("pollingConfig.maxRecords=10000", ("maxRecords",)),
        ("millisBehindLatestThresholdForReducedTps=0", ()),
        ("idleTimeBetweenReadsInMillis=1500", ("idleTimeBetweenReadsInMillis",)),
        ("", ()),
    ],
)
def test_a_polling_key_selects_polling_unless_it_means_not_set(
    configure: Configure, line: str, selecting: tuple[str, ...]
) -> None:
    assert configure(line, without=["retrievalMode"]).settings.polling_keys_given == selecting


ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/s/consumer/app:1700000000"


@pytest.mark.parametrize(
    ("name", "arn", "problem"),
    [
        ("app", None, ""),
        ("a.b_c-1", None, ""),
        ("my app", None, "no name of a consumer"),
        ("a" * 129, None, "no name of a consumer"),
        ("my app", ARN, ""),  # the name is not used
        ("app", ARN.replace("stream/s/", "stream/other/"), "of the stream other, but s is read"),
        ("app", "arn:aws:kinesis:eu-west-1:123456789012:stream/s", "no ARN of a consumer"),
        ("app", ARN.replace("aws:", "aws-cn:"), ""),
    ],
)
def test_a_consumer_is_one_of_the_stream(name: str, arn: str | None, problem: str) -> None:
    found = consumer_problem(name, arn, "s")
    assert bool(found) == bool(problem)
    assert problem in found


def test_the_default_is_fan_out_and_says_as_which_consumer(configure: Configure) -> None:
    loaded = configure("", without=["retrievalMode"])
    assert loaded.settings.reads_by_fan_out
    assert "as the consumer app, which is registered" in remarks_on(loaded, "retrievalMode", Level.INFO)[0]


def test_a_consumer_arn_is_told_and_its_name_is_not_used(configure: Configure) -> None:
    lines = f"fanoutConfig.consumerArn={ARN}\nfanoutConfig.consumerName=other\nretrievalMode=FANOUT\nstreamName=s"
    loaded = configure(lines, without=["retrievalMode", "streamName"])
    assert f"as the consumer {ARN}" in remarks_on(loaded, "retrievalMode", Level.INFO)[0]
    assert "is not used" in remarks_on(loaded, "fanoutConfig.consumerName", Level.INFO)[0]


def test_keys_of_the_other_mode_are_pointed_out(configure: Configure) -> None:
    polling = configure("fanoutConfig.retryBackoffMillis=5")
    assert "by polling" in remarks_on(polling, "fanoutConfig.retryBackoffMillis", Level.INFO)[0]
    fan_out = configure("retrievalMode=FANOUT\nmaxRecords=5", without=["retrievalMode"])
    assert "by enhanced fan-out" in remarks_on(fan_out, "maxRecords", Level.INFO)[0]


@pytest.mark.parametrize("mode", ["DEFAULT", "FANOUT"])
def test_botocores_client_cannot_subscribe(configure: Configure, mode: str) -> None:
    lines = f"mld.wireClient=botocore\nretrievalMode={mode}"
    if mode == "FANOUT":
        with pytest.raises(ConfigurationError, match=r"not possible with mld\.wireClient=botocore"):
            configure(lines, without=["retrievalMode"])
        return
    loaded = configure(lines, without=["retrievalMode"])
    assert not loaded.settings.reads_by_fan_out
    assert "it polls instead" in remarks_on(loaded, "retrievalMode")[0]
