"""Finds which rows of a frame fail, in one job. Spark itself would end the job at the first failure.

A class in the JVM (`MldFailingRows.java`) catches exceptions of Spark's expressions, notes the row, and continues with
the next one. If an expression fails that uses the result of a Python function, only the partition is known: Python
takes many rows at once, so it is not known from which of them the result came.

A Python function that raises an exception would end its worker. So while a search makes frames, each Python function
that takes single rows, or series of pandas, is replaced. The replacement gets the number of the row as an additional
argument. If the user's function raises, the replacement reports that number and returns null. It does so only in the
job of the search; in any other job of the pipeline it raises the exception. Functions that take several rows together,
or that SQL calls by name, are not replaced; for them only the partition is reported.

If the pipeline gathers or sorts rows first, or if one Python function gets the result of another, a later row than the
failing one may be reported. A row certainly fails only if it fails alone in a partition; `batch.jobs` checks that.

To replace the functions, `UserDefinedFunction.__call__` of PySpark is replaced while frames are made. It is the only
place through which all functions pass when they are applied to a frame, also those of the pipeline's own modules. Other
threads still get the original.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from mld.processors.spark.sentences import first_line
from mld.processors.spark.session.jvm_classes import everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


log = logging.getLogger("mld.spark")

CLASS = "MldFailingRows"
ROWS_MAX = 1_000
"""How many rows all partitions of a job report together, because the driver's heap has to hold the reports. When a
partition has reported its share, it only reports that there are more.
"""
TEXT_CHARS_MAX = 8_000
"""How many characters of an exception's text are kept at its beginning, and as many at its end. The text may be long,
because it may quote a record.
"""
OF_PYTHON = ("Python", "InPandas", "InArrow")
"""The names of plan nodes that run Python functions contain one of these."""
SHUFFLE = "+-"
"""In Spark's description of an RDD, this marks an RDD before a shuffle."""
SEARCH = "mld.failingRows"
"""Property of the job of a search. Its value has the number of the search, and how many rows a partition may report."""


class PartitionFailure(NamedTuple):
    """A failure in a partition: the number of the row (None if unknown), from the column that
    `FailingRows.pass_row_numbers` was given, and the text of the exception."""

    partition: int
    row: int | None
    text: str


class FailingRows:
    """The search for failing rows in one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._searches = count()
        self._raised: Any = None
        """Accumulator for the reports of Python functions. Spark adds the reports of each task only once, even if it
        repeats the task."""

    def pass_row_numbers(self, frame: DataFrame, number: str) -> DataFrame:
        """Return the frame with a filter that passes the number of each row, from the column `number`, to the JVM
        class.
        """
        self._java_object()
        return frame.filter(f"reflect('{CLASS}', 'at', {number}) IS NOT NULL")

    @contextmanager
    def reporting_functions(self) -> Iterator[None]:
        """Replace the Python functions in all frames that this thread makes within this block, so that they report the
        rows over which they raise. The method `failing` collects the reports.
        """
        from pyspark.sql.classic.column import Column
        from pyspark.sql.udf import UserDefinedFunction

        call, searcher, replacement_of = UserDefinedFunction.__call__, get_ident(), cache(self._replacement)

        def call_replacement(function: UserDefinedFunction, *args: Any, **kwargs: Any) -> Any:
            """Call the replacement of the function if the searching thread calls, otherwise the function itself."""
            if get_ident() == searcher:
                try:
                    if (replacement := replacement_of(function)) is not None:
                        return call(replacement, Column(self._java_object().row()), *args, **kwargs)
                except Exception as error:  # a future PySpark may be different
                    log.info("a function does not say over which rows it raises: %s", first_line(error))
            return call(function, *args, **kwargs)

        patched: Any = UserDefinedFunction
        patched.__call__ = call_replacement
        try:
            yield
        finally:
            patched.__call__ = call

    def failing(self, frame: DataFrame, count: int) -> Sequence[PartitionFailure]:
        """Run one job over a frame, and return the failures; those that Python functions report come first. The job has
        the property SEARCH, by which the replaced Python functions know that they have to report.

        Raises ValueError if the frame does not have `count` partitions, or makes partitions of its own. Raises any
        exception of Spark if planning fails, or the job fails for another reason than a row."""
        execution = frame._jdf.queryExecution()
        rdd = execution.toRdd().toJavaRDD()
        if rdd.getNumPartitions() != count or rdd.toDebugString().count(SHUFFLE) > 1:
            raise ValueError("the pipeline makes partitions of its own")
        rows_max, search = max(1, ROWS_MAX // count), next(self._searches)
        is_python = any(name in execution.executedPlan().toString() for name in OF_PYTHON)
        function = self._java_object()
        function.tell(not is_python, rows_max, TEXT_CHARS_MAX)
        if self._raised is not None:
            self._raised.value = ()
        context = self._session.sparkContext
        context.setLocalProperty(SEARCH, f"{search} {rows_max}")
        try:
            outcomes = rdd.mapPartitionsWithIndex(function, False).collect()
        finally:
            context.setLocalProperty(SEARCH, None)  # type: ignore[arg-type]
        raised = self._raised.value if self._raised is not None else ()
        reports = (str(text).split(" ", 2) for text in outcomes)  # as `MldFailingRows.call` makes them
        return [
            *(PartitionFailure(*report) for number, *report in raised if number == search),
            *(PartitionFailure(int(at), None if row == "?" else int(row), text) for at, row, text in reports),
        ]

    def _replacement(self, function: UserDefinedFunction) -> UserDefinedFunction | None:
        """Return a function that replaces `function` during the search, and takes the row's number as an additional
        first argument. Return None if `function` is not replaced.

        A function that PySpark has translated into Spark's expressions (`transpiled`) is not replaced, because the
        replacement could only run in Python, where the original may not run at all.
        """
        from pyspark.accumulators import AddingAccumulatorParam
        from pyspark.sql.types import StructType
        from pyspark.sql.udf import UserDefinedFunction
        from pyspark.util import PythonEvalType

        is_series = function.evalType == PythonEvalType.SQL_SCALAR_PANDAS_UDF
        by_row = (PythonEvalType.SQL_BATCHED_UDF, PythonEvalType.SQL_ARROW_BATCHED_UDF)
        if (not is_series and function.evalType not in by_row) or getattr(function, "transpiled", None):
            return None
        if self._raised is None:
            self._raised = self._session.sparkContext.accumulator((), AddingAccumulatorParam(()))
        returned = function.returnType
        fields = returned.names if is_series and isinstance(returned, StructType) else None
        func = reporting(function.func, self._raised, function._name, is_series, fields)
        return UserDefinedFunction(func, returned, function._name, function.evalType, function.deterministic)

    def _java_object(self) -> Any:
        """Return an object of the JVM class, after making the class known to the JVM and its executors."""
        return everywhere(self._session, CLASS).newInstance()


def reporting(
    function: Callable[..., Any], raised: Any, name: str, is_series: bool, fields: Sequence[str] | None
) -> Callable[..., Any]:
    """Return a replacement of `function` that reports the rows over which the function raises. A series is halved until
    one row is left.

    `raised` is the accumulator for the reports, and `name` the function's name for the report. `is_series`: the
    function takes series of pandas. `fields` are the names of the columns that it returns, if it returns several. The
    replacement is pickled by value, because executors need not have this module."""
    reported: set[int] = set()

    def call(rows: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the function over some rows. If it raises during a search, find the rows by halves, and report them."""
        try:
            return function(*args, **kwargs)
        except Exception:
            from importlib import import_module
            from traceback import format_exc

            from pyspark import TaskContext

            context: Any = TaskContext.get()
            search = context.getLocalProperty(SEARCH)
            if search is None:
                raise
            text = f"the function {name} raises an exception\n{format_exc()}"
        number, rows_max = map(int, search.split())
        room = rows_max - len(reported)  # 0: one last report, without a row; less: no more reports
        pandas: Any = import_module("pandas") if is_series else None
        if is_series and len(rows) > 1 and room >= 0:
            halves = []
            for part in (slice(len(rows) // 2), slice(len(rows) // 2, None)):
                values = [series.iloc[part].reset_index(drop=True) for series in (rows, *args, *kwargs.values())]
                named = dict(zip(kwargs, values[1 + len(args) :], strict=True))
                halves.append(call(*values[: 1 + len(args)], **named))
            return pandas.concat(halves, ignore_index=True)
        row = int(rows.iloc[0] if is_series else rows)
        if row not in reported and room >= 0:
            reported.add(row)
            if len(text) > 2 * TEXT_CHARS_MAX:
                text = f"{text[:TEXT_CHARS_MAX]}\n{text[-TEXT_CHARS_MAX:]}"
            # Without room, this last report has no row: it only says that there are more.
            raised.add(((number, context.partitionId(), row if room else None, text),))
        if fields:
            return pandas.DataFrame(index=rows.index, columns=fields)
        return pandas.Series(None, rows.index, object) if is_series else None

    return call
