"""The user's pipeline: a function or a SQL statement that makes frames for the sinks from a batch's `records`.

When a pipeline is loaded, a fault that can be found without data (no such file, a syntax error, a wrong signature) is
reported in one sentence. Functions that the pipeline passes to Spark are pickled by value, so Python workers need not
find the user's file.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from mld import pip_install
from mld.processors.spark.positions import ShardSpan, StreamShard
from mld.processors.spark.sentences import first_line
from mld.properties.named_file import NamedFileError, bytes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("mld.spark")
FILE_BYTES_MAX = 8 * 1024 * 1024
"""A program that people write has a hundredth of this."""
VIEW = "records"
NEVER_THE_RECORDS = ("AnalysisException", "PySparkTypeError", "PicklingError")
"""Names of exceptions that a wrong plan, call or closure causes, and never a record."""
NO_SESSION_YET = "SESSION_OR_CONTEXT_NOT_EXISTS"
"""Spark's error condition if the pipeline's file uses a session while it is being imported."""
PANDAS_MODULES = ("pandas", "pyarrow")
PANDAS_EXTRA = pip_install("spark-pandas")
Frames = Mapping[str, "DataFrame | None"]
Transform: TypeAlias = 'Callable[["DataFrame", Batch], Any]'


class PipelineError(Exception):
    """The pipeline has to be corrected. The message is one sentence, and names the remedy."""


class PipelineFailed(Exception):
    """The pipeline raised an exception over this batch. The message is one sentence, with file and line."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The micro-batch whose records a pipeline gets.

    `spans` has the part of each shard that is in the batch; `records` is the number of records in all of them;
    `attempt` counts from 1. Every batch of every host has an `id` of its own. After a crash the same records may come
    in a batch with another `id`. So if a pipeline writes rows itself, with `id` as their key, a record may be written
    twice."""

    id: str
    spans: Mapping[StreamShard, ShardSpan] = field(default_factory=dict)
    records: int = 0
    attempt: int = 1
    time_ms: int = 0
    """When this attempt called the pipeline, in milliseconds since 1970."""

    @property
    def shards(self) -> tuple[str, ...]:
        """Ids of the shards; ``streamName/shardId`` if the application reads several streams."""
        return tuple(sorted(shard.label for shard in self.spans))


class Pipeline:
    """A loaded pipeline. `sinks` are the names of the configured sinks."""

    def __init__(self, transform: Transform, sinks: Iterable[str], module: ModuleType | None = None) -> None:
        self._transform = transform
        self._sinks = tuple(sinks)
        self._module = module
        self._session: SparkSession | None = None

    def setup(self, session: SparkSession) -> None:
        """Call the user's `setup`, if there is one, and remember the session for `read_again`. Raises PipelineError."""
        self._session = session
        self._hook("setup", session)

    def check_imports(self) -> None:
        """Run the import statements at the top level of the user's function `setup`, without the rest of it: so
        `mld-spark --check` finds a missing package without a session. Raises PipelineError."""
        hook = getattr(self._module, "setup", None)
        if inspect.isfunction(hook):
            (function,) = ast.parse(textwrap.dedent(inspect.getsource(hook))).body
            for statement in function.body if isinstance(function, ast.FunctionDef) else ():
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    try:
                        exec(compile(ast.Module([statement], []), "setup", "exec"), dict(vars(self._module)))  # noqa: S102
                    except Exception as error:
                        raise PipelineError(self._in_words("setup() of the pipeline cannot import", error)) from error

    def read_again(self) -> None:
        """Clear Spark's cache and call `setup` again, because files that `setup` has read are gone."""
        if self._session is None or getattr(self._module, "setup", None) is None:
            return
        try:
            self._session.catalog.clearCache()
            self.setup(self._session)
        except Exception as error:  # a table that another program is rewriting may be readable at the next attempt
            log.error("%s", error)

    def teardown(self, session: SparkSession) -> None:
        self._hook("teardown", session)

    def frames(self, records: DataFrame, batch: Batch) -> Frames:
        """Call the pipeline. Return a frame for each sink; None for a sink that gets nothing. Raises PipelineError for
        an exception that no record can cause, such as a missing package, and PipelineFailed for any other."""
        try:
            returned = self._transform(records, batch)
        except Exception as error:
            message = self._in_words("the pipeline failed", error)
            if isinstance(error, ImportError):
                raise PipelineError(message) from error
            if any(kind.__name__ in NEVER_THE_RECORDS for kind in type(error).__mro__):
                raise PipelineError(f"{message}; correct the pipeline") from error
            raise PipelineFailed(message) from error
        return assigned(returned, self._sinks)

    def _hook(self, name: str, session: SparkSession) -> None:
        """Call `setup` or `teardown`, if the pipeline has it. Raises PipelineError."""
        hook = getattr(self._module, name, None)
        if hook is None:
            return
        try:
            hook(session)
        except Exception as error:
            raise PipelineError(self._in_words(f"{name}() of the pipeline failed", error)) from error

    def _in_words(self, what: str, error: Exception) -> str:
        """Return `what` (such as "the pipeline failed"), followed by the line of the user's file and the exception."""
        return f"{what}{_place(error, getattr(self._module, '__file__', None))}: {_named(error)}"


def load(spec: str, sinks: Iterable[str]) -> Pipeline:
    """Return the pipeline that `mld.spark.pipeline` names. Raises PipelineError."""
    if spec.endswith(".sql"):
        return Pipeline(_sql(_read(Path(spec))), sinks)
    name, colon, function = spec.rpartition(":")
    if not colon or not function.isidentifier() or not name.endswith(".py"):
        raise PipelineError(
            f"mld.spark.pipeline is {spec!r}; write path/to/pipeline.py:function or path/to/pipeline.sql"
        )
    path = Path(name)
    _read(path)  # for its errors: `_module` reads the file again
    module = _module(path)
    transform = getattr(module, function, None)
    if not callable(transform):
        known = ", ".join(
            n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__
        )
        raise PipelineError(f"{path} has no function {function}; it has {known or 'none'} (key mld.spark.pipeline)")
    _check_signature(transform, f"{path}:{function}")
    return Pipeline(transform, sinks, module)


def assigned(returned: object, sinks: tuple[str, ...]) -> Frames:
    """Return the frames in the value that a pipeline returned, by sink. Raises PipelineError if they do not fit the
    sinks."""
    named = ", ".join(sinks) or "none"
    if returned is None:
        return dict.fromkeys(sinks)
    if isinstance(returned, Mapping):
        strange = [str(name) for name in returned if name not in sinks]
        if strange:
            raise PipelineError(
                f"the pipeline returned a frame for {', '.join(strange)}, and the sinks are: {named}; "
                "configure mld.spark.sink.<name>.path for it"
            )
        for name, frame in returned.items():
            _check_frame(frame, f"for {name}", optional=True)
        return {name: returned.get(name) for name in sinks}
    _check_frame(returned, "")
    if len(sinks) != 1:
        remedy = "return a dict of frames by sink" if sinks else "configure mld.spark.sink.<name>.path, or return None"
        raise PipelineError(f"the pipeline returned one frame, and the sinks are: {named}; {remedy}")
    return {sinks[0]: returned}  # type: ignore[dict-item]


def _check_frame(frame: object, where: str, *, optional: bool = False) -> None:
    """Raise PipelineError if this value, which a pipeline returned, is not a frame. `where` says for which sink it is;
    None is allowed if `optional`.
    """
    kind = type(frame)  # the attributes of the type are checked, because `write` of a streaming frame raises
    if (frame is None and optional) or (hasattr(kind, "schema") and hasattr(kind, "write")):
        return
    raise PipelineError(
        f"the pipeline returned {type(frame).__name__} {where}".rstrip()
        + "; it has to return a DataFrame, a dict of DataFrames by sink, or None"
    )


def _sql(text: str) -> Transform:
    """Return a pipeline that runs a SQL statement over the view `records`."""
    statement = text.strip().rstrip(";")

    def transform(records: DataFrame, batch: Batch) -> DataFrame:
        records.createOrReplaceTempView(VIEW)
        return records.sparkSession.sql(statement)

    return transform


def _read(path: Path) -> str:
    """Return the text of the pipeline's file. Raises PipelineError."""
    try:
        return bytes_of(path, FILE_BYTES_MAX).decode("utf-8")
    except (NamedFileError, UnicodeDecodeError) as error:
        why = str(error) if isinstance(error, NamedFileError) else "is not UTF-8"
        raise PipelineError(
            f"{path.absolute()} {why}; mld.spark.pipeline is relative to the daemon's working directory"
        ) from error


def _module(path: Path) -> ModuleType:
    """Load the user's file as a module. Raises PipelineError."""
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else "mld_pipeline"
    spec = importlib.util.spec_from_file_location(name, path.absolute())
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.absolute().parent))  # for modules beside it
    sys.modules[name] = module
    try:
        # Python's own import would use its cache of bytecode, even if the file has changed within the same second and
        # has the same length.
        exec(compile(bytes_of(path, FILE_BYTES_MAX), str(path.absolute()), "exec", dont_inherit=True), vars(module))  # noqa: S102
    except SyntaxError as error:
        raise PipelineError(f"{error.filename}:{error.lineno}: {error.msg}: {(error.text or '').strip()}") from error
    except Exception as error:
        where = _place(error, str(path.absolute()))
        raise PipelineError(f"{path} cannot be imported{where}: {_named(error)}") from error
    _travels_by_value(module)
    return module


def _travels_by_value(module: ModuleType) -> None:
    """Make Spark pickle functions of the user's file by value."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _check_signature(transform: Callable[..., object], where: str) -> None:
    """Raise PipelineError if the function cannot be called with records and batch."""
    try:
        inspect.signature(transform).bind(object(), object())
    except TypeError as error:
        raise PipelineError(
            f"{where} cannot be called as {where.rpartition(':')[2]}(records, batch): {error}"
        ) from error
    except ValueError:
        return  # a callable without a signature cannot be checked


def _place(error: BaseException, file: str | None) -> str:
    """Return the line of the user's file where the exception was raised, as " at file:line"; an empty text if it was
    raised elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if file and frame.filename == file]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _named(error: Exception) -> str:
    """Return the class and the text of an exception; with a remedy if Spark has no session yet, or an import failed."""
    message = f"{type(error).__name__}: {first_line(error)}"
    if NO_SESSION_YET in message:
        return f"{message.rstrip('.')}; that is when setup(spark) is called: do it there, or in the function"
    if not isinstance(error, ImportError):
        return message
    missing = (error.name or str(error)).lower()  # PySpark's own ImportError has no name
    if any(name in missing for name in PANDAS_MODULES):
        remedy = f"mld.spark.pipeline needs {' and '.join(PANDAS_MODULES)} for that: {PANDAS_EXTRA}"
    elif isinstance(error, ModuleNotFoundError):
        remedy = "install it beside PySpark,"
    else:
        return f"{message.rstrip('.')}; correct the pipeline"
    return f"{message.rstrip('.')}; {remedy} in the environment of {sys.executable}"
