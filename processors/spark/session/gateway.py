"""Passes the settings of a session to its JVM in a file that other users of the machine cannot read.

PySpark would pass every setting on the JVM's command line, where all users can read it, and the keys of a bucket would
be among them. The file is removed when the JVM has read it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FILE = "spark.properties"
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""Environment variable with the arguments that PySpark passes to spark-submit. A value that the user has set for
another Spark is replaced, because our keys decide.
"""


@contextmanager
def passed_in_file(settings: Mapping[str, str], file: Path) -> Iterator[None]:
    """Write the settings into `file`, for the JVM that starts within this block, and remove the file afterwards."""
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(encode(settings))
    # The second option keeps spark-defaults.conf, which the file would replace.
    os.environ[ARGUMENTS] = shlex.join(["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"])
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        del os.environ[ARGUMENTS]


def encode(settings: Mapping[str, str]) -> str:
    """Return a Java properties file, in ASCII."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    """Return a text as escapes of its UTF-16 code units, which Java reads in any properties file."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
