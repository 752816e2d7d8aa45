"""Jars from Maven Central at pinned versions, with the hashes of their files, below `.cache/`."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
CACHE = Path(__file__).resolve().parents[2] / ".cache"
TIMEOUT_S = 600


class Jar(NamedTuple):
    group: str
    name: str
    version: str
    sha256: str
    folder: str
    """Where it is kept, below `.cache/`."""
    classifier: str = ""

    @property
    def file(self) -> Path:
        return CACHE / self.folder / f"{'-'.join(filter(None, (self.name, self.version, self.classifier)))}.jar"

    @property
    def artifact(self) -> str:
        return f"{self.group}:{self.name}:{self.version}" + (f":jar:{self.classifier}" if self.classifier else "")


def fetch(jars: Iterable[Jar]) -> bool:
    """Have Maven fetch what is not there yet; a file with another hash is not used. Says what is not available."""
    for jar in jars:
        if jar.file.is_file():
            continue
        try:
            data = _fetched(jar)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{jar.artifact} cannot be fetched by mvn: {error}", file=sys.stderr)
            return False
        if (found := hashlib.sha256(data).hexdigest()) != jar.sha256:
            print(f"{jar.artifact} has the hash {found}, and not {jar.sha256}; it is not used", file=sys.stderr)
            return False
        jar.file.parent.mkdir(parents=True, exist_ok=True)
        draft = jar.file.with_suffix(".draft")
        draft.write_bytes(data)
        draft.replace(jar.file)  # so that an interrupted run leaves nothing half done
    return True


def _fetched(jar: Jar) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-Dartifact={jar.artifact}", f"-DoutputDirectory={folder}"]
        subprocess.run(["mvn", "--quiet", "--batch-mode", COPY, *options], check=True, timeout=TIMEOUT_S)
        return (Path(folder) / jar.file.name).read_bytes()
