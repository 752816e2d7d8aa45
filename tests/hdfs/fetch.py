"""Puts the jars with an HDFS and a YARN in one JVM where the tests of HDFS look for them.

    python -m tests.hdfs.fetch

The version is that of the Hadoop client in PySpark. Maven fetches them; what is not the pinned jar is not used. Once
they are there nothing is done. Ends with status 1 and a sentence if a jar is not available.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "hadoop"
TIMEOUT_S = 600


class Jar(NamedTuple):
    group: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> Path:
        return CACHE / f"{self.name}-{self.version}.jar"

    @property
    def artifact(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


JARS = (
    Jar(
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        "3.5.0",
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
    ),
    Jar(
        "org.junit.jupiter",
        "junit-jupiter-api",
        "5.13.4",
        "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
    ),
    Jar(
        "org.junit.platform",
        "junit-platform-commons",
        "1.13.4",
        "1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408",
    ),
    Jar("org.opentest4j", "opentest4j", "1.3.0", "48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b"),
    Jar(
        "org.bouncycastle", "bcprov-jdk18on", "1.82", "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce"
    ),
    Jar(
        "org.bouncycastle", "bcpkix-jdk18on", "1.82", "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63"
    ),
    Jar(
        "org.bouncycastle", "bcutil-jdk18on", "1.82", "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d"
    ),
)
"""The first one is what is wanted; its YARN does not start without the others."""


def jars() -> list[Path]:
    return [jar.file for jar in JARS]


def installed() -> bool:
    return all(jar.is_file() for jar in jars())


def main() -> int:
    CACHE.mkdir(parents=True, exist_ok=True)
    for jar in JARS:
        if jar.file.is_file():
            continue
        try:
            data = _fetch(jar)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{jar.artifact} cannot be fetched by mvn: {error}", file=sys.stderr)
            return 1
        if (found := hashlib.sha256(data).hexdigest()) != jar.sha256:
            print(f"{jar.artifact} has the hash {found}, and not {jar.sha256}; it is not used", file=sys.stderr)
            return 1
        draft = jar.file.with_suffix(".draft")
        draft.write_bytes(data)
        draft.replace(jar.file)  # so that an interrupted run leaves nothing half done
    return 0


def _fetch(jar: Jar) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        options = [f"-Dartifact={jar.artifact}", f"-DoutputDirectory={folder}"]
        subprocess.run(["mvn", "--quiet", "--batch-mode", COPY, *options], check=True, timeout=TIMEOUT_S)
        return (Path(folder) / jar.file.name).read_bytes()


if __name__ == "__main__":
    sys.exit(main())
