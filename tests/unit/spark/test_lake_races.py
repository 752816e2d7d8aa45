"""What is tried again in a commit to a table, and how often."""

from __future__ import annotations

import pytest

from mld.processors.spark.session.error_classes import ANALYSIS
from mld.processors.spark.sink_port import JobFailed, SinkError, SinkRefused
from mld.processors.spark.sink_spec import SinkSpec
from mld.processors.spark.sinks.delta import DeltaSink
from mld.processors.spark.sinks.lake_table import RACES_MAX, LostRace, of_rows
from tests.unit.spark.java_errors import FromJava, of


def of_class(name: str) -> Exception:
    """An exception whose class is called as one of Java."""
    module, _, own = name.rpartition(".")
    return type(own, (Exception,), {"__module__": module})("no such column")


@pytest.fixture
def sink():
    return DeltaSink(SinkSpec("out", "delta", "/table"), None)  # type: ignore[arg-type]


def tried(sink, *ends):
    """Make attempts that end so, one after the other; what comes out, and how many were made."""
    left = list(ends)

    def attempt():
        if isinstance(end := left.pop(0), Exception):
            raise end
        return end

    try:
        return sink._raced(attempt, "writing"), len(ends) - len(left)
    except SinkError as error:
        return error, len(ends) - len(left)


def test_a_schema_that_changed_between_analysis_and_commit_is_a_lost_race(sink):
    assert tried(sink, of_class(ANALYSIS), "written") == ("written", 2)


def test_what_cannot_be_analysed_twice_is_refused(sink):
    error, attempts = tried(sink, of_class(ANALYSIS), LostRace(), of_class(ANALYSIS), "written")
    assert isinstance(error, SinkRefused) and "no such column" in str(error) and attempts == 3


def test_races_are_bounded(sink):
    error, attempts = tried(sink, *[LostRace() for _ in range(RACES_MAX + 1)])
    assert "other commits came first" in str(error) and attempts == RACES_MAX


BROKEN_LOG = of("org.apache.spark.SparkRuntimeException", state="2203G", text="no type of a column")
"""What Spark says of a column of a table whose type is no type: by its SQLSTATE the row is to blame."""
UNKNOWN = of("java.lang.NumberFormatException", text='For input string: "x"')


@pytest.mark.parametrize("cause", [BROKEN_LOG, UNKNOWN], ids=["of a row", "unknown"])
def test_no_record_is_blamed_for_what_is_wrong_with_the_table(sink, cause):
    def written():
        with of_rows():
            raise FromJava(cause)

    error, _ = tried(sink, FromJava(cause))
    assert type(error) is SinkError and str(error).endswith("; it is tried again")
    with pytest.raises(JobFailed):
        sink._raced(written, "writing")


def test_who_made_the_table_first_is_said_if_it_cannot_be_read(sink):
    def made():
        with sink._making():
            raise FromJava(of(ANALYSIS, condition="TABLE_OR_VIEW_ALREADY_EXISTS", text="a view of that name"))

    with pytest.raises(SinkError, match=r"other commits came first.*a view of that name"):
        sink._raced(made, "writing")
