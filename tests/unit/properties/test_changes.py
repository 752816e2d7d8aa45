"""What a changed file means to a daemon that runs."""

from __future__ import annotations

import pytest

from mld.properties.live_changes import changes_between
from tests.unit.properties.conftest import Configure


@pytest.mark.parametrize(
    ("before", "after", "taken", "waiting"),
    [
        pytest.param("", "", (), (), id="the same"),
        pytest.param("", "mld.logLevel=info", (), (), id="a default written out"),
        pytest.param("", "mld.logLevel=debug", ("mld.logLevel",), (), id="live"),
        pytest.param("timeoutInSeconds=30", "", ("timeoutInSeconds",), (), id="a live line removed"),
        pytest.param(
            "", "failoverTimeMillis=20000", (), ("failoverTimeMillis",), id="what follows from it goes unnamed"
        ),
        pytest.param(
            "leaseAssignmentIntervalMillis=5000", "", (), ("leaseAssignmentIntervalMillis",), id="back to what follows"
        ),
        pytest.param("", "maxActiveThreads=7", (), (), id="without effect"),
        pytest.param(
            "", "tableName=other\ntaskBackoffTimeMillis=9", ("taskBackoffTimeMillis",), ("tableName",), id="both"
        ),
        pytest.param(
            "mld.spark.conf.x.password=one",
            "mld.spark.conf.x.password=two",
            (),
            ("mld.spark.conf.x.password",),
            id="a secret of Spark",
        ),
    ],
)
def test_changed_keys_are_named_by_whether_they_need_a_restart(
    configure: Configure, before: str, after: str, taken: tuple[str, ...], waiting: tuple[str, ...]
) -> None:
    changes = changes_between(configure(before), configure(after))
    assert (changes.taken, changes.waiting) == (taken, waiting)


def test_what_needs_a_restart_does_not_run_and_is_named_each_time(configure: Configure) -> None:
    running, file = configure("maxRecords=10"), configure("maxRecords=20\nlogWarningForTaskAfterMillis=5")
    first = changes_between(running, file)
    assert first.running.settings.reader.records_max == 10
    assert first.running.settings.child.warn_after_s == 0.005
    second = changes_between(first.running, file)
    assert (second.taken, second.waiting) == ((), ("maxRecords",))


def test_bounds_pauses_and_the_level_of_the_log_are_taken_at_once(configure: Configure) -> None:
    numbers = (
        "timeoutInSeconds",
        "parentShardPollIntervalMillis",
        "taskBackoffTimeMillis",
        "logWarningForTaskAfterMillis",
        "mld.childRestartBackoffMillis",
    )
    file = configure("\n".join([*(f"{name}=7" for name in numbers), "mld.logLevel=debug"]))
    changes = changes_between(configure(), file)
    assert (set(changes.taken), changes.waiting) == ({*numbers, "mld.logLevel"}, ())
    assert changes.running.settings == file.settings
