"""Java workers as processes of their own; started, stopped, killed and frozen as `Daemon` is.

2.7.2 and 3.1.3 are Amazon's MultiLangDaemon. 3.5.1 is Amazon's library under a small main of ours, which takes the same
properties file and starts the same children (`tests/interop/kcl`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.interop.kcl import fetch
from tests.support import fetch_java_kcl
from tests.support.daemon import FILE_VARIABLE, Daemon
from tests.support.servers import ACCOUNT, REGION, require

MAIN_CLASS = "software.amazon.kinesis.multilang.MultiLangDaemon"
LOGBACK = Path(__file__).with_name("logback.xml")
# One JVM of several on a small machine: a small heap, and no time spent on compiling for the long run.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Daws.cborEnabled=false")


@dataclass(frozen=True, slots=True)
class Release:
    """A version of the library, and where the fleet keeps lock and reports."""

    version: str
    is_single_table: bool

    def command(self, java: Path, file: Path) -> list[str] | None:
        """Runs a worker on the properties file; None if it was not fetched."""
        path = self._class_path()
        if path is None:
            return None
        before = [str(java), *JVM_OPTIONS, f"-Dlogback.configurationFile={LOGBACK}", "-cp", path]
        if self.version == fetch.LIBRARY_3.version:
            return [*before, "Worker", str(file)]
        return [*before, MAIN_CLASS, "--properties-file", str(file), "--log-configuration", str(LOGBACK)]

    def _class_path(self) -> str | None:
        if self.version == fetch.LIBRARY_3.version:
            return fetch.class_path()
        if self.version == fetch.DAEMON_2.version:
            return fetch.class_path_of_2x()
        jars = fetch_java_kcl.installed()
        return None if jars is None else f"{jars}/*"


RELEASES = {
    "2.7.2": Release("2.7.2", is_single_table=True),
    "3.1.3": Release("3.1.3", is_single_table=False),
    "3.5.1": Release("3.5.1", is_single_table=True),
    "3.5.1-legacy": Release("3.5.1", is_single_table=False),
}
"""By the name that the tests bear: the newest on its own layout, and on the tables that an older fleet has left it."""


class JavaDaemon(Daemon):
    """`worker` is told to the children as mld tells it, so that the recorders note whose they are."""

    def __init__(
        self,
        directory: Path,
        keys: Mapping[str, object],
        *,
        name: str,
        worker: str,
        endpoint: str,
        release: Release,
    ) -> None:
        super().__init__(directory, keys, name=name)
        java = fetch_java_kcl.java()
        command = None if java is None else release.command(java, self.file)
        require(command is not None, f"the Java worker {release.version} (`make interop`)")
        assert command is not None
        self.command = command
        self.environment = os.environ | {
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_CLOUDWATCH": endpoint,
            "MLD_WORKER_ID": worker,
            FILE_VARIABLE: str(self.file),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
