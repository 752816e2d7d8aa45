"""Files with any keys of free names and any values: whatever is not known to be harmless never shows.

What is drawn is a file: names of settings of Spark, of options of sinks, of declared and of unknown keys, with values
that look like secrets and values that do not, each with a mark in it that is in no other. Of every key that is not
shown in full the mark must be in nothing that `mld check` says, as text and as JSON, whether the file can be used or
not; and what is printed is as many printable lines as there are to print.

    python -m tests.fuzz.secrets --examples 200000     a long run; `make scan-secrets`
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mld.check.command import print_check
from mld.properties import keys
from mld.properties.redaction import Shown
from mld.properties.shown_of_spark import conf_shown, option_shown
from mld.properties.spark_keys import KEYS as SPARK_KEYS

MARK = "M4rk"
REQUIRED = {
    "executableName": "child",
    "applicationName": "app",
    "streamName": "s",
    "regionName": "eu-west-1",
    "AwsCredentialsProvider": "DefaultCredentialsProvider",
    "retrievalMode": "POLLING",
}
_WORDS = (
    "spark", "hadoop", "fs", "s3a", "azure", "account", "key", "sql", "catalog", "prod", "uri", "memory", "executor",
    "driver", "extraJavaOptions", "url", "user", "auth", "token", "password", "header", "io", "x",
)  # fmt: skip
_segments = st.one_of(st.sampled_from(_WORDS), st.text("abcXYZ019-_", min_size=1, max_size=6))
_names = st.lists(_segments, min_size=1, max_size=6).map(".".join)
_declared = [key.name for key in (*keys.KEYS, *SPARK_KEYS) if "<" not in key.name and key.shown is not Shown.FULL]
_free = st.one_of(
    _names.map("mld.spark.conf.".__add__).filter(lambda key: _hides(conf_shown(key.removeprefix("mld.spark.conf.")))),
    _names.map("mld.spark.sink.out.options.".__add__).filter(lambda key: _hides(option_shown(key.split(".", 5)[5]))),
)
_mark = st.integers(10_000, 99_999).map(lambda number: f"{MARK}{number}")
_around = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
_forms = st.sampled_from(
    ["{}", "{}", "true{}", "http://u:{}@h/", "http://h/?p={}", "user/{}@h", "jdbc:oracle:thin:u/{}@h", "Bearer {}",
     "-Dfoo.auth={}", "pwd={}", "a {} b", "{}=", "/data/{}"]
)  # fmt: skip


def _hides(how: Shown) -> bool:
    return how is Shown.HIDDEN


@st.composite
def _value(draw: st.DrawFn) -> str:
    return draw(_around) + draw(_forms).format(draw(_mark)) + draw(_around)


_user_of_a_place = st.builds("http://{}:{}@h/".format, _mark, _mark)
files = st.tuples(
    st.dictionaries(_free, _value(), max_size=6),
    st.dictionaries(st.sampled_from(_declared), _user_of_a_place, max_size=2),
    st.dictionaries(_names.filter(lambda name: keys.find(name) is None), _value(), max_size=3),
)
File = tuple[dict[str, str], dict[str, str], dict[str, str]]


def check_file(drawn: File) -> None:
    """Nothing of the values is printed."""
    lines = REQUIRED | drawn[2] | drawn[1] | drawn[0]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "app.properties"
        file.write_text("".join(f"{key}={_written(value)}\n" for key, value in lines.items()), "ascii")
        for as_json in (False, True):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                print_check(str(file), (), as_json=as_json, show_all=True)
            said = out.getvalue()
            assert MARK not in said.replace(directory, ""), said
            assert all(line.isprintable() for line in said.split("\n")), said
            if as_json:
                json.loads(said)


def _written(value: str) -> str:
    """As a file has it: every unit of UTF-16 as an escape, so that nothing is taken for the grammar's."""
    units = value.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def run(examples: int, *, derandomize: bool) -> None:
    """So many files; raises for the smallest that shows something."""
    limits = settings(
        max_examples=examples,
        derandomize=derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    limits(given(files)(check_file))()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.secrets")
    parser.add_argument("--examples", type=int, default=20_000, help="files (default %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    run(arguments.examples, derandomize=False)
    print(json.dumps({"files": arguments.examples, "seconds": round(time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
