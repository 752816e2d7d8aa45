"""Passes the settings of a session to its JVM in a file that the other users of this machine cannot read.

PySpark would hand every setting to the JVM on its command line, which all users can read; the keys of a bucket would
stand there. The file is removed when the JVM has read it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FILE = "spark.properties"
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
"""What PySpark calls spark-submit with; arguments of another Spark are replaced, our keys say how we run."""


@contextmanager
def told(settings: Mapping[str, str], file: Path) -> Iterator[None]:
    """Give, while the JVM starts: the file, and the arguments that name it."""
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(encode(settings))
    # The file takes the place of spark-defaults.conf, unless that is asked for too.
    os.environ[ARGUMENTS] = shlex.join(["--properties-file", str(file), "--load-spark-defaults", "pyspark-shell"])
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        del os.environ[ARGUMENTS]


def encode(settings: Mapping[str, str]) -> str:
    """Return a properties file of Java's, in ASCII."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
