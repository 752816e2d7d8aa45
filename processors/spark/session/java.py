"""Finds the Java in which Spark runs, and its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mld.processors.spark.session_errors import SessionError

JAVA_MIN = 17
JAVA_CHECK_S = 20.0
"""Longest wait for `java -version`. On a loaded machine a JVM takes seconds to start."""
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use."""

    home: Path
    version: int
    """Its feature release, such as 17."""


def find_java(env: Mapping[str, str]) -> Java:
    """Return the Java that JAVA_HOME names, or else the first one on PATH. Raises SessionError."""
    named = env.get("JAVA_HOME")
    remedy = f"install a JRE {JAVA_MIN} or later (Debian: openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
    if named:
        program = Path(named) / "bin" / "java"
        if not os.access(program, os.X_OK):
            raise SessionError(f"JAVA_HOME is {named}, and there is no {program}; {remedy}")
    else:
        found = shutil.which("java", path=env.get("PATH"))
        if found is None:
            raise SessionError(f"Spark needs Java, and there is none on PATH; {remedy}")
        program = Path(found).resolve()
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=JAVA_CHECK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"{program} does not run: {error}; {remedy}") from error
    version = _VERSION.search(done.stderr + done.stdout)
    if version is None:
        raise SessionError(f"{program} does not say its version: {(done.stderr + done.stdout)[:200]!r}; {remedy}")
    java = Java(program.parent.parent, int(version[1]))
    if java.version < JAVA_MIN:
        raise SessionError(f"{program} is Java {java.version}; Spark 4 needs {JAVA_MIN} or later; {remedy}")
    return java
