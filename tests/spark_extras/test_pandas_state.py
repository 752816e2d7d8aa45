"""`applyInPandasWithState` and other functions over pandas, where pandas and pyarrow are: `make test-spark-pandas`."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from mld.processors.spark.session.failing_rows import FailingRows
from mld.processors.spark.testing import session
from tests.support.spark_bed import Bed, bed, rows

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_SPARK_PANDAS" not in os.environ, reason="make test-spark-pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SESSIONS = '''
import pandas as pd
from pyspark.sql.streaming.state import GroupStateTimeout

GAP_MS = 30 * 60 * 1000


def closed(user, session, events):
    return pd.DataFrame({"user": [user], "session": [session], "events": [events]})


def sessions(key, frames, state):
    """A session ends when half an hour passes without an event; the user's sessions are counted."""
    (user,) = key
    session, events, last = state.get if state.exists else (1, 0, 0)
    if state.hasTimedOut:
        yield closed(user, session, events)
        state.update((session + 1, 0, 0))
        return
    for at in sorted(int(at.value // 1_000_000) for frame in frames for at in frame["at"]):
        if events and at - last > GAP_MS:
            yield closed(user, session, events)
            session, events = session + 1, 0
        events, last = events + 1, at
    state.update((session, events, last))
    state.setTimeoutTimestamp(last + GAP_MS)


def transform(records, batch):
    events = records.select("payload.*").withWatermark("at", "1 minute")
    return events.groupBy("user").applyInPandasWithState(
        sessions, "user STRING, session INT, events INT", "session INT, events INT, last LONG", "append",
        GroupStateTimeout.EventTimeTimeout,
    )
'''
FUNCTION = """
import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

@F.pandas_udf(StringType())
def upper(texts: pd.Series) -> pd.Series:
    return texts.str.upper()

def transform(records, batch):
    return records.select("sequenceNumber", upper("payload").alias("payload"))
"""


def event(user: str, at: str) -> bytes:
    return json.dumps({"user": user, "at": f"2026-01-01T{at}:00Z"}).encode()


def closed(made: Bed) -> list[tuple[str, int, int]]:
    return sorted((row["user"], row["session"], row["events"]) for row in rows(made.out))


def test_sessions_of_users_are_counted_across_batches_and_a_restart(tmp_path: Path) -> None:
    keys = (
        "mld.spark.mode = streaming",
        f"mld.spark.checkpoint = {tmp_path / 'state'}",
        "mld.spark.format = json",
        "mld.spark.schema = user STRING, at TIMESTAMP",
        "mld.spark.master = local[2]",
    )
    with bed(tmp_path, SESSIONS, *keys) as made:
        assert made.run({1: event("ann", "10:00"), 2: event("bob", "10:05"), 3: event("ann", "10:10")}).failed == {}
        assert made.run({4: event("ann", "10:20")}).failed == {}
        assert closed(made) == []
    with bed(tmp_path, SESSIONS, *keys) as made:
        # Some are delivered again; ann's go on in her session, and bob is late for his.
        again = {3: event("ann", "10:10"), 4: event("ann", "10:20")}
        assert made.run({**again, 5: event("ann", "10:50"), 6: event("bob", "10:40")}).failed == {}
        assert closed(made) == [("bob", 1, 1)]
        assert made.run({7: event("cid", "11:30")}).failed == {}
        assert closed(made) == [("ann", 1, 4), ("bob", 1, 1), ("bob", 2, 1)]
    with bed(tmp_path, SESSIONS, *keys) as made:
        assert made.run({8: event("ann", "11:40"), 9: event("cid", "13:00")}).failed == {}
        assert closed(made) == [("ann", 1, 4), ("ann", 2, 1), ("bob", 1, 1), ("bob", 2, 1), ("cid", 1, 1)]


def test_functions_over_pandas(tmp_path: Path) -> None:
    with bed(tmp_path, FUNCTION, "mld.spark.master = local[2]") as made:
        assert made.run({1: b"one", 2: b"two"}).failed == {}
        assert made.rows() == Counter([(1, "ONE"), (2, "TWO")])


def test_functions_over_pandas_tell_over_which_rows_they_raise() -> None:
    import pandas as pd
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    spark = session()

    def number(text: str) -> int:
        return int(text)

    def both(texts):
        return pd.DataFrame({"text": texts, "number": texts.map(number)})

    def none(texts):
        raise ValueError("invalid literal")

    series = F.pandas_udf(lambda texts, more: texts.map(number) + more, "int")
    of_struct = F.pandas_udf(lambda frame: frame["text"].map(number), "int")
    made = {
        "series": lambda frame: frame.select(series(more="n", texts="text")),
        "a struct comes": lambda frame: frame.select(of_struct(F.struct("text"))),
        "a struct goes": lambda frame: frame.select(F.pandas_udf(both, "text STRING, number INT")("text")),
        "row by row": lambda frame: frame.select(F.udf(number, "int", useArrow=True)("text")),
        "all fail": lambda frame: frame.select(F.pandas_udf(none, "text STRING, number INT")("text")),
    }
    try:
        search = FailingRows(spark)
        for name, pipeline in made.items():
            records = spark.range(300, numPartitions=1).selectExpr("id AS n", "IF(id IN (7, 8, 299), 'x', '5') AS text")
            with search.functions_told():
                frame: DataFrame = pipeline(search.told(records, "n"))
            found = search.failing(frame, 1)
            assert [one.row for one in found] == ([*range(300)] if name == "all fail" else [7, 8, 299]), name
            assert all(one.text.count("Traceback") == 1 and "invalid literal" in one.text for one in found), name
    finally:
        spark.stop()
