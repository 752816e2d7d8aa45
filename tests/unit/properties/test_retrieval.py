"""The selection rule of configuration spec, section 9."""

from __future__ import annotations

import pytest

from properties.retrieval import choose_retrieval
from properties.values import RetrievalMode
from tests.unit.properties.conftest import Configure, remarks_on

DEFAULT, POLLING, FANOUT = RetrievalMode.DEFAULT, RetrievalMode.POLLING, RetrievalMode.FANOUT


@pytest.mark.parametrize(
    ("mode", "keys", "available", "chosen", "warns"),
    [
        (POLLING, [], True, POLLING, False),
        (FANOUT, ["maxRecords"], True, FANOUT, False),
        (DEFAULT, [], True, FANOUT, False),
        (DEFAULT, ["maxRecords"], True, POLLING, True),
        (DEFAULT, ["maxRecords"], False, POLLING, True),
        (DEFAULT, [], False, POLLING, True),
        (FANOUT, [], False, POLLING, True),
    ],
)
def test_the_mode_follows_the_keys(
    mode: RetrievalMode, keys: list[str], available: bool, chosen: RetrievalMode, warns: bool
) -> None:
    choice = choose_retrieval(mode, keys, fan_out_available=available)
    assert (choice.mode, bool(choice.warning)) == (chosen, warns)


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


def test_without_fan_out_the_default_polls_with_a_warning(configure: Configure) -> None:
    assert "it polls instead" in remarks_on(configure("", without=["retrievalMode"]), "retrievalMode")[0]
