"""What can be wrong with a pipeline, each as one sentence; and what it may return."""

from __future__ import annotations

import os
import re
import sys

import pytest

from mld.processors.spark.pipeline import Batch, PipelineError, PipelineFailed, assigned, load
from mld.processors.spark.positions import RecordPosition, ShardSpan, StreamShard


class Frame:
    schema = write = None


BATCH = Batch("1", {StreamShard("s", "a"): ShardSpan(None, RecordPosition(7))}, 3)


def pipeline(tmp_path, text, function="transform", sinks=("out",)):
    path = tmp_path / "users_pipeline.py"
    path.write_text(text)
    return load(f"{path}:{function}", sinks)


def test_a_function_gets_records_and_batch(tmp_path):
    loaded = pipeline(tmp_path, "def transform(records, batch):\n    return {'out': records, 'more': None}\n",
                      sinks=("out", "more"))  # fmt: skip
    frame = Frame()
    assert loaded.frames(frame, BATCH) == {"out": frame, "more": None}


def test_hooks_run(tmp_path):
    loaded = pipeline(
        tmp_path,
        "seen = []\ndef setup(spark): seen.append(spark)\ndef teardown(spark): seen.append('end')\n"
        "def transform(records, batch): return None\n",
    )
    loaded.setup("session")
    loaded.teardown("session")
    assert loaded._module.seen == ["session", "end"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def transform(records, batch)\n    pass\n", r"users_pipeline.py:1: expected ':'"),
        ("import no_such_module_at_all\n", r"cannot be imported at .*users_pipeline.py:1: ModuleNotFoundError"),
        ("def transform(records): return records\n", r"cannot be called as transform\(records, batch\): too many"),
        ("def other(records, batch): return records\n", "has no function transform; it has other"),
        ("transform = 5\n", "has no function transform"),
    ],
)
def test_a_bad_file_gets_a_sentence(tmp_path, text, said):
    with pytest.raises(PipelineError, match=said):
        pipeline(tmp_path, text)


def test_a_file_of_the_same_length_and_second_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "users_pipeline.py"
    for name in ("first", "other"):
        path.write_text(f"def {name}(records, batch): return None\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        load(f"{path}:{name}", ("out",))
    assert not (tmp_path / "__pycache__").exists()


def test_annotations_are_as_the_file_has_them(tmp_path):
    """Spark asks functions over pandas by them which kind they are."""
    loaded = pipeline(tmp_path, "def transform(records: int, batch: str): return None\n")
    assert loaded._module.transform.__annotations__ == {"records": int, "batch": str}


@pytest.mark.parametrize("spec", ["pipeline.py", "pipeline:transform", "x.py:not-a-name", ""])
def test_a_bad_spec_gets_a_sentence(spec):
    with pytest.raises(PipelineError, match=r"write path/to/pipeline.py:function or path/to/pipeline.sql"):
        load(spec, ())


@pytest.mark.parametrize("spec", ["no/where.py:transform", "no/where.sql"])
def test_no_file_gets_a_sentence(spec):
    with pytest.raises(PipelineError, match="relative to the daemon's working directory"):
        load(spec, ())


def test_an_exception_names_its_line(tmp_path):
    loaded = pipeline(tmp_path, "def transform(records, batch):\n    x = 1\n    return x / 0\n")
    with pytest.raises(PipelineFailed, match=r"users_pipeline.py:3: ZeroDivisionError: division by zero"):
        loaded.frames(Frame(), BATCH)


MISSING = [
    ("import no_such_module_at_all", "install it beside PySpark, in the environment of "),
    (
        "raise ModuleNotFoundError('No module named x', name='pandas')",
        r"pip install 'mld-kinesis\[spark-pandas\]' in the env",
    ),
    (
        "raise ImportError('[PACKAGE_NOT_INSTALLED] PyArrow >= 18 must be installed.')",
        "installed; mld.spark.pipeline n",
    ),
    ("from re import no_such_name", "; correct the pipeline"),
    ("raise RuntimeError('[SESSION_OR_CONTEXT_NOT_EXISTS] x')", r"that is when setup\(spark\) is called: do it there"),
]


@pytest.mark.parametrize(("statement", "said"), MISSING)
def test_what_is_missing_gets_its_remedy(tmp_path, statement, said):
    with pytest.raises(PipelineError, match=said) as caught:
        pipeline(tmp_path, f"{statement}\n")
    assert sys.executable in str(caught.value) or " the environment of " not in str(caught.value)


@pytest.mark.parametrize(("statement", "said"), MISSING[:-1])
def test_what_is_missing_is_never_the_records(tmp_path, statement, said):
    loaded = pipeline(tmp_path, f"def transform(records, batch):\n    {statement}\n")
    with pytest.raises(PipelineError, match=said) as caught:
        loaded.frames(Frame(), BATCH)
    assert re.search(r"users_pipeline.py:2: ", str(caught.value))


def test_a_hook_that_fails_names_its_line(tmp_path):
    loaded = pipeline(
        tmp_path, "def setup(spark):\n    raise ValueError('no table')\ndef transform(records, batch): pass\n"
    )
    with pytest.raises(PipelineError, match=r"setup\(\) of the pipeline failed at .*:2: ValueError: no table"):
        loaded.setup(None)


def test_what_may_be_returned():
    frame = Frame()
    assert assigned(frame, ("out",)) == {"out": frame}
    assert assigned(None, ("a", "b")) == {"a": None, "b": None}
    assert assigned({"b": frame}, ("a", "b")) == {"a": None, "b": frame}
    assert assigned(None, ()) == {}


@pytest.mark.parametrize(
    ("returned", "sinks", "said"),
    [
        (Frame(), ("a", "b"), "return a dict of frames by sink"),
        (Frame(), (), "configure mld.spark.sink.<name>.path, or return None"),
        ({"c": Frame()}, ("a",), "a frame for c, and the sinks are: a"),
        ([1], ("a",), "returned list; it has to return a DataFrame"),
        ({"a": 5}, ("a",), "returned int for a"),
    ],
)
def test_what_may_not(returned, sinks, said):
    with pytest.raises(PipelineError, match=said):
        assigned(returned, sinks)


def test_a_batch_says_what_it_holds():
    assert BATCH.shards == ("a",)


SETUP = "def transform(records, batch): return records\ndef setup(spark):\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    import no_such_module_at_all as n\n", r"cannot import: ModuleNotFoundError: No module named 'no_such"),
        ("    from no_such_module import deep\n", "install it beside PySpark"),
        ("    from json import nothing_of_it\n", "correct the pipeline"),
    ],
)
def test_what_setup_imports_is_there_or_said_without_a_session(tmp_path, body, said):
    with pytest.raises(PipelineError, match=f"setup.. of the pipeline .*{said}"):
        pipeline(tmp_path, SETUP + body).check_imports()


def test_what_setup_can_do_without_need_not_be_there(tmp_path):
    body = "    try:\n        import no_such_module\n    except ImportError:\n        pass\n    raise ValueError\n"
    pipeline(tmp_path, SETUP + body).check_imports()
    pipeline(tmp_path, "def transform(records, batch): return records\n").check_imports()
    partial = f"from functools import partial\nsetup = partial(print)\n{SETUP.splitlines()[0]}"
    pipeline(tmp_path, partial).check_imports()
