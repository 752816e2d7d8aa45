"""Runs a few lines of Java on pinned jars of Maven Central, to record what only Java tells. Needs Maven, JDK 17."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.kcl.fetch import COPY, DOWNLOAD_TIMEOUT_S
from tests.support.locked import wrong_jars

COMPILE_TIMEOUT_S = 120
RUN_TIMEOUT_S = 120


def output_of(folder: Path, main_class: str, *arguments: str) -> str:
    """What the class of `folder`/src prints; the jars are those of its `pom.xml`, compared with `jars.sha256`."""
    with tempfile.TemporaryDirectory() as temporary:
        jars, classes = Path(temporary) / "jars", Path(temporary) / "classes"
        options = ["-q", "-B", "-f", str(folder / "pom.xml"), f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        subprocess.run(["mvn", *options, COPY], check=True, timeout=DOWNLOAD_TIMEOUT_S)
        if wrong := wrong_jars(jars, folder / "jars.sha256"):
            sys.exit(f"the jars that Maven has resolved are not those of {folder / 'jars.sha256'}: {', '.join(wrong)}")
        sources = [str(path) for path in sorted((folder / "src").glob("*.java"))]
        compiler = ["javac", "-proc:none", "-d", str(classes), "-cp", f"{jars}/*", *sources]
        subprocess.run(compiler, check=True, timeout=COMPILE_TIMEOUT_S)
        java = ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*", main_class, *arguments]
        return subprocess.run(java, check=True, timeout=RUN_TIMEOUT_S, capture_output=True, text=True).stdout
