"""Puts the jars with an HDFS and a YARN in one JVM where the tests of HDFS look for them.

    python -m tests.hdfs.fetch

The version is that of the Hadoop client in PySpark. Maven fetches them; what is not the pinned jar is not used. Once
they are there nothing is done. Ends with status 1 and a sentence if a jar is not available.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.maven import Jar, fetch

FOLDER = "hadoop"
JARS = (
    Jar(
        "org.apache.hadoop",
        "hadoop-client-minicluster",
        "3.5.0",
        "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
        FOLDER,
    ),
    Jar(
        "org.junit.jupiter",
        "junit-jupiter-api",
        "5.13.4",
        "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
        FOLDER,
    ),
    Jar(
        "org.junit.platform",
        "junit-platform-commons",
        "1.13.4",
        "1c25ca641ebaae44ff3ad21ca1b2ef68d0dd84bfeb07c4805ba7840899b77408",
        FOLDER,
    ),
    Jar(
        "org.opentest4j",
        "opentest4j",
        "1.3.0",
        "48e2df636cab6563ced64dcdff8abb2355627cb236ef0bf37598682ddf742f1b",
        FOLDER,
    ),
    Jar(
        "org.bouncycastle",
        "bcprov-jdk18on",
        "1.82",
        "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
        FOLDER,
    ),
    Jar(
        "org.bouncycastle",
        "bcpkix-jdk18on",
        "1.82",
        "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
        FOLDER,
    ),
    Jar(
        "org.bouncycastle",
        "bcutil-jdk18on",
        "1.82",
        "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
        FOLDER,
    ),
)
"""The first one is what is wanted; its YARN does not start without the others."""


def jars() -> list[Path]:
    return [jar.file for jar in JARS]


def installed() -> bool:
    return all(jar.is_file() for jar in jars())


def main() -> int:
    return 0 if fetch(JARS) else 1


if __name__ == "__main__":
    sys.exit(main())
