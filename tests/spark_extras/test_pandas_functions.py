"""Functions over pandas, where pandas and pyarrow are: `make test-spark-pandas`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from mld.processors.spark.session.failing_rows import FailingRows
from mld.processors.spark.testing import session
from tests.support.spark_bed import bed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif("MLD_SPARK_PANDAS" not in os.environ, reason="make test-spark-pandas"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

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
            with search.reporting_functions():
                frame: DataFrame = pipeline(search.pass_row_numbers(records, "n"))
            found = search.failing(frame, 1)
            assert [one.row for one in found] == ([*range(300)] if name == "all fail" else [7, 8, 299]), name
            assert all(one.text.count("Traceback") == 1 and "invalid literal" in one.text for one in found), name
    finally:
        spark.stop()
