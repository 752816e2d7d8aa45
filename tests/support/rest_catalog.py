"""A REST catalog of Iceberg that was written by others: Nessie, over a bucket of versitygw.

Its server is one jar of Maven Central, and needs a Java 21 or later: that of `MLD_JAVA_21`, or one below /usr/lib/jvm.
It keeps the catalog in its memory.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from pathlib import Path

from tests.support.maven import Jar
from tests.support.s3_servers import SECRET, Versitygw
from tests.support.servers import ACCOUNT, REGION, ServerProcess, free_port, require, wait_for_answer

NESSIE = Jar(
    "org.projectnessie.nessie",
    "nessie-quarkus",
    "0.99.0",
    "ce9fa33e2878bf5ea3981876b9e6204cabc0362b3dd82326b10e47271a78c417",
    "iceberg",
    "runner",
)
AWS_BUNDLE = Jar(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
    "iceberg",
)
JAVA_MIN = 21
JAVA_VARIABLE = "MLD_JAVA_21"
MACHINES = Path("/usr/lib/jvm")
ANSWER_S = 5
_VERSION = re.compile(r'version "(\d+)')


def java_home() -> Path | None:
    """Of a Java that is new enough; None if there is none."""
    named = [Path(os.environ[JAVA_VARIABLE])] if JAVA_VARIABLE in os.environ else sorted(MACHINES.glob("*"))
    return next((home for home in named if _version(home / "bin" / "java") >= JAVA_MIN), None)


def _version(java: Path) -> int:
    if not os.access(java, os.X_OK):
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    found = _VERSION.search(said)
    return int(found[1]) if found else 0


class Nessie(ServerProcess):
    """The catalog `lake`, whose warehouse is the bucket of that name in `store`."""

    def __init__(self, store: Versitygw, bucket: str = "lake") -> None:
        require(NESSIE.file.is_file(), NESSIE.artifact)
        self._store, self._bucket = store, bucket
        self._port = free_port()
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self.uri = f"{self.endpoint}/iceberg"

    def start(self) -> None:
        home = java_home()
        require(home is not None, f"a Java {JAVA_MIN} ({JAVA_VARIABLE})")
        self._store.client("s3").create_bucket(Bucket=self._bucket)
        s3 = "nessie.catalog.service.s3.default-options"
        properties = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(free_port()),
            "quarkus.log.level": "ERROR",
            "quarkus.http.access-log.enabled": "false",
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "warehouse",
            "nessie.catalog.warehouses.warehouse.location": f"s3://{self._bucket}/warehouse",
            f"{s3}.endpoint": self._store.endpoint,
            f"{s3}.region": REGION,
            f"{s3}.path-style-access": "true",
            f"{s3}.request-signing-enabled": "false",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:tests.store",
            "tests.store.name": ACCOUNT,
            "tests.store.secret": SECRET,
        }
        options = ["-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        words = [f"-D{name}={value}" for name, value in properties.items()]
        self.spawn(
            [f"{home}/bin/java", *options, *words, "-jar", str(NESSIE.file)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_answer(self, lambda: urllib.request.urlopen(f"{self.uri}/v1/config", timeout=ANSWER_S).close())
