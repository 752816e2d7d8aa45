"""Amazon's MultiLangDaemon: its jars, and the command that runs it as its users do.

With the heap and the compilers that a JVM chooses by itself, INFO in the log, and JSON: CBOR, which the SDK speaks by
default, is not spoken by the stand-in (measured elsewhere it saved Java a twentieth).
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from mld.core.positions import Position
from mld.core.streams import HashRange
from mld.leases.lease import Lease
from mld.leases.rows import new_row
from tests.benchmarks.process import ROOT
from tests.support.fetch_java_kcl import java as find_java
from tests.support.servers import make_client

MAIN_CLASS = "software.amazon.kinesis.multilang.MultiLangDaemon"
LOGBACK = ROOT / "tests" / "interop" / "logback.xml"
QUICK_START = {"leaseAssignmentIntervalMillis": "5000", "skipShardSyncAtWorkerInitializationIfLeasesExist": "true"}
"""On the leases of `prepare`: a minute and a half less. By default the leader looks every 20 s; a look costs little."""
STORE, STORE_PASSWORD = "trust.p12", "changeit"  # nothing in it is secret
_MAIN_JAR = re.compile(r"amazon-kinesis-client-multilang-(\d[\d.]*)\.jar")


def version(jars: Path) -> str:
    """Of the daemon whose jars these are. Raises ArgumentTypeError, with a remedy, if it cannot run."""
    if find_java() is None:
        raise argparse.ArgumentTypeError("there is no java: install a JDK 17, or set JAVA_HOME")
    found = [match[1] for file in sorted(jars.glob("*.jar")) if (match := _MAIN_JAR.fullmatch(file.name))]
    if not found:
        raise argparse.ArgumentTypeError(
            f"{jars} has no amazon-kinesis-client-multilang-*.jar: docs/lab/performance.md says how to get the jars"
        )
    return found[-1]


def command(jars: Path, certificate: Path | None) -> tuple[str, ...]:
    """With ``{properties}`` for its file; `certificate` is that of servers that speak TLS."""
    options = [] if certificate is None else [f"-Djavax.net.ssl.trustStore={_trust_store(certificate)}"]
    options += [f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}"] if options else []
    return (
        str(find_java()), "-Daws.cborEnabled=false", *options, "-cp", f"{jars}/*", MAIN_CLASS,
        "--properties-file", "{properties}", "--log-configuration", str(LOGBACK),
    )  # fmt: skip


def prepare(dynamodb: str, kinesis: str, application: str, stream: str) -> None:
    """The lease table of an application that has not begun yet; `dynamodb` and `kinesis` are endpoints."""
    client = make_client("dynamodb", dynamodb)
    client.create_table(
        TableName=application,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for shard in make_client("kinesis", kinesis).list_shards(StreamName=stream)["Shards"]:
        keys = shard["HashKeyRange"]
        hash_range = HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"]))
        lease = Lease(shard["ShardId"], Position("TRIM_HORIZON"), hash_range=hash_range)
        client.put_item(TableName=application, Item=new_row(lease))


def _trust_store(certificate: Path) -> Path:
    """Beside the certificate; made when first asked for."""
    store = certificate.with_name(STORE)
    if not store.exists():
        java = find_java()
        assert java is not None
        keytool = [str(java.resolve().with_name("keytool")), "-importcert", "-noprompt", "-alias", "bench"]
        options = ["-file", str(certificate), "-keystore", str(store), "-storepass", STORE_PASSWORD]
        subprocess.run([*keytool, *options], check=True, capture_output=True)
    return store
