"""Which rows of a frame fail, in one job: Spark itself would end the job at the first of them.

A class in the JVM (`MldFailingRows.java`) takes what Spark's expressions throw, notes the row and goes on with the next
one. What throws above a function in
Python is told by its partition only: Python takes many rows at once, so nobody knows whose result it was.

A function in Python that raises would end its worker. So while frames are made for a search, each function that takes
rows one by one, or as series of pandas, is replaced by one that gets the number of its row as one more argument,
reports that number when the user's function raises, and gives null instead. It does so in the job of a search only: in
a job that the pipeline runs by itself meanwhile the exception goes its way. Functions that take rows together, or that
SQL names, raise as ever, and their partition is told.

Where the pipeline gathers or sorts rows first, or one function gets the result of another one, the row that is told is
one that was read later. Only a row that fails in a partition of its own is certain; `batch.jobs` sees to that.

For this `UserDefinedFunction.__call__` of PySpark is replaced for a moment: nothing else sees all functions, those of
the pipeline's own modules too, where they meet the frame. Other threads get the original.
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
"""The partitions of a job tell so many rows at most, each its share, and then that it has more: the driver's heap has
to hold what all tell."""
TEXT_CHARS_MAX = 8_000
"""Kept of the beginning and of the end of an exception's text, which may quote the record."""
OF_PYTHON = ("Python", "InPandas", "InArrow")
"""Names of the nodes of a plan for which functions in Python are run."""
SHUFFLE = "+-"
"""How the description of an RDD begins that is on the far side of a shuffle."""
SEARCH = "mld.failingRows"
"""Property of a job that searches: its number, and how many rows a function may tell in a partition."""


class PartitionFailure(NamedTuple):
    """What failed in a partition: the row, by the number that `FailingRows.told` was given, or None if nobody knows;
    and the exception."""

    partition: int
    row: int | None
    text: str


class FailingRows:
    """The search in one session."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._searches = count()
        self._raised: Any = None
        """What functions report: an accumulator, of which Spark takes each task's part once, whoever ran it again."""

    def told(self, frame: DataFrame, number: str) -> DataFrame:
        """Return the frame, of which `failing` learns the rows by a column of their numbers."""
        self._java_object()
        return frame.filter(f"reflect('{CLASS}', 'at', {number}) IS NOT NULL")

    @contextmanager
    def functions_told(self) -> Iterator[None]:
        """Have functions in Python report to `failing`, in all frames that this thread makes while it lasts."""
        from pyspark.sql.classic.column import Column
        from pyspark.sql.udf import UserDefinedFunction

        call, searcher, telling_of = UserDefinedFunction.__call__, get_ident(), cache(self._telling)

        def call_telling(function: UserDefinedFunction, *args: Any, **kwargs: Any) -> Any:
            if get_ident() == searcher:
                try:
                    if (telling := telling_of(function)) is not None:
                        return call(telling, Column(self._java_object().row()), *args, **kwargs)
                except Exception as error:  # whatever a future PySpark has changed
                    log.info("a function does not say over which rows it raises: %s", first_line(error))
            return call(function, *args, **kwargs)

        patched: Any = UserDefinedFunction
        patched.__call__ = call_telling
        try:
            yield
        finally:
            patched.__call__ = call

    def failing(self, frame: DataFrame, count: int) -> Sequence[PartitionFailure]:
        """Return what cannot be computed of a frame, by one job; what functions report comes first. Raises ValueError
        if it has not so many partitions, or makes its own ones, what Spark raises while it plans, and if the job fails
        otherwise than by a row.
        """
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
        told = (str(one).split(" ", 2) for one in outcomes)
        return [
            *(PartitionFailure(*one) for number, *one in raised if number == search),
            *(PartitionFailure(int(at), None if row == "?" else int(row), text) for at, row, text in told),
        ]

    def _telling(self, function: UserDefinedFunction) -> UserDefinedFunction | None:
        """Return the function that reports, whose first argument is the row; None if it has to stay as it is."""
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
        func = telling(function.func, self._raised, function._name, is_series, fields)
        return UserDefinedFunction(func, returned, function._name, function.evalType, function.deterministic)

    def _java_object(self) -> Any:
        """Return an object of the class, which this JVM and its executors know from now on."""
        return everywhere(self._session, CLASS).newInstance()


def telling(
    function: Callable[..., Any], raised: Any, name: str, is_series: bool, fields: Sequence[str] | None
) -> Callable[..., Any]:
    """Return a function that calls another one, and reports the row over which that raises; series are halved until one
    row is left. It travels by value: executors need not have this module."""
    told: set[int] = set()

    def call(rows: Any, *args: Any, **kwargs: Any) -> Any:
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
        room = rows_max - len(told)
        pandas: Any = import_module("pandas") if is_series else None
        if is_series and len(rows) > 1 and room >= 0:
            halves = []
            for part in (slice(len(rows) // 2), slice(len(rows) // 2, None)):
                some = [one.iloc[part].reset_index(drop=True) for one in (rows, *args, *kwargs.values())]
                named = dict(zip(kwargs, some[1 + len(args) :], strict=True))
                halves.append(call(*some[: 1 + len(args)], **named))
            return pandas.concat(halves, ignore_index=True)
        row = int(rows.iloc[0] if is_series else rows)
        if row not in told and room >= 0:
            told.add(row)
            if len(text) > 2 * TEXT_CHARS_MAX:
                text = f"{text[:TEXT_CHARS_MAX]}\n{text[-TEXT_CHARS_MAX:]}"
            raised.add(((number, context.partitionId(), row if room else None, text),))
        if fields:
            return pandas.DataFrame(index=rows.index, columns=fields)
        return pandas.Series(None, rows.index, object) if is_series else None

    return call
