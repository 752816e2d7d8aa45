"""The Java MultiLangDaemon as a process of its own; started, stopped, killed and frozen as `Daemon` is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support import fetch_java_kcl
from tests.support.daemon import FILE_VARIABLE, Daemon
from tests.support.servers import ACCOUNT, REGION, require

MAIN_CLASS = "software.amazon.kinesis.multilang.MultiLangDaemon"
LOGBACK = Path(__file__).with_name("logback.xml")
# One JVM of several on a small machine: a small heap, and no time spent on compiling for the long run.
JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Daws.cborEnabled=false")


class JavaDaemon(Daemon):
    """`worker` is told to the children as mld tells it, so that the recorders note whose they are."""

    def __init__(self, directory: Path, keys: Mapping[str, object], *, name: str, worker: str, endpoint: str) -> None:
        super().__init__(directory, keys, name=name)
        java, jars = fetch_java_kcl.java(), fetch_java_kcl.installed()
        require(java is not None and jars is not None, "the Java MultiLangDaemon (`make interop`)")
        jvm = [str(java), *JVM_OPTIONS, "-cp", f"{jars}/*", MAIN_CLASS]
        self.command = [*jvm, "--properties-file", str(self.file), "--log-configuration", str(LOGBACK)]
        self.environment = os.environ | {
            "AWS_ACCESS_KEY_ID": ACCOUNT,
            "AWS_SECRET_ACCESS_KEY": "local",
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_CLOUDWATCH": endpoint,
            "MLD_WORKER_ID": worker,
            FILE_VARIABLE: str(self.file),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
