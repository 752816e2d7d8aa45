"""Secrets planted wherever a value of the configuration can come from, and the forms in which one could come out."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from mld.properties import keys
from mld.properties.keytypes import Key
from mld.properties.redaction import Shown
from mld.properties.spark_keys import KEYS as SPARK_KEYS
from mld.properties.value_kinds import ValueKind

SHOWN_IN_FULL = {
    "applicationName", "coordinatorStateTableName", "fanoutConfig.consumerArn", "fanoutConfig.consumerName",
    "mld.spark.s3.bucketOwner", "mld.spark.s3.kmsKey", "mld.spark.s3.region",
    "mld.spark.pipelineId", "mld.spark.rescuedColumn", "mld.spark.schema",
    "mld.spark.streamId", "streamName",
    "tableName", "workerId", "workerMetricsTableName",
}  # fmt: skip
"""Names, which also stand in AWS and in every line of the log."""
TAIL = {"first": "Zq7", "second": "Kx9", "third": "Wv3"}


def secret(number: int, which: str = "first") -> str:
    """No two are alike, and each has characters that URLs, JSON and shells write in another way."""
    return f"pl4nt+{number:04d}{TAIL[which]}ed"


@dataclass(frozen=True, slots=True)
class Plant:
    """A line of a file, and what must not come out of it."""

    key: str
    value: str
    secrets: tuple[str, ...]


def forms(planted: str) -> set[str]:
    """As it is, and as programs write it elsewhere."""
    encoded = planted.encode()
    # In base64 a text looks in three ways, by where it begins; the ends depend on what is beside it.
    shifted = {base64.b64encode(b"x" * n + encoded).decode()[(8 * n + 5) // 6 : -4] for n in range(3)}
    return {
        planted, quote(planted, safe=""), quote_plus(planted), json.dumps(planted)[1:-1], repr(planted)[1:-1],
        planted[::-1], encoded.hex(), *shifted,
    }  # fmt: skip


def found(planted: str, text: str) -> bool:
    return any(form in text for form in forms(planted))


_SPARK_FREE = {
    "mld.spark.conf.fs.azure.account.key.mine.dfs.core.windows.net",
    "mld.spark.conf.spark.hadoop.fs.s3a.access.key",
    "mld.spark.conf.spark.hadoop.fs.s3a.bucket.b.session",
    "mld.spark.conf.spark.hadoop.my.private.key",
    "mld.spark.conf.spark.something.of.ours",
    "mld.spark.conf.spark.sql.catalog.prod.io",
    "mld.spark.conf.spark.sql.catalog.prod.rest.sigv4",
    "mld.spark.conf.spark.executorEnv.PGPASS",
    "mld.spark.conf.spark.ssl.keyPassword",
    "mld.spark.conf.spark.memory.password",
    "mld.spark.sink.out.options.user",
    "mld.spark.sink.out.options.pem_private_key",
    "mld.spark.sink.out.options.kafka.sasl.jaas.config",
    "mld.spark.sink.out.options.header.auth",
}
_PLACES = (
    "https://user:{0}@host:1234/path", "http://u:p/{0}@proxy:3128", "http://u:p@{0}@proxy:3128",
    "http://u:a=b?{0}@proxy:3128", "http://host/path?token={0}", "http://host/a#{0}", "http://host/?x=a@{0}",
    "jdbc:postgresql://h/db?user=u&password={0}", "jdbc:sqlserver://h;databaseName=d;pwd={0}",
    "jdbc:oracle:thin:user/{0}@host:1521/XE", "jdbc:oracle:thin:{0}/x@host:1521/XE",
    "jdbc:mysql://(host=h,user=u,password={0})/db", "jdbc:db2://h:1/db:user=u;password={0};",
    "s3a://AKIA:{0}@bucket/path", "sc://host:15002/;token={0};user_id=me", "k8s://https://u:{0}@host",
    "user:{0}@proxy:3128", "Bearer {0}", "/data/x={0}", "/data {0}",
)  # fmt: skip
_COMMANDS = (
    "child --db-password {0}", "child --token={0}", "child -p{0}", "child -p {0}", "child {0}", "child --x --{0}",
    "java -Dfoo.auth={0} -jar x.jar {0}", "python3 -m app {0}", "FOO={0} child", "child http://u:{0}@h/",
    "python3 -c {0}", "child --header Authorization:Bearer {0}",
)  # fmt: skip
_JVM = ("-Xmx1g -Dfoo.auth={0}", "-D{0}", "{0}", "-javaagent:/x.jar={0}", "-XX:OnError={0}", "-XX:+{0}x")
_BY_SHOWN = {
    Shown.PLACE: _PLACES, Shown.ENDPOINT: _PLACES, Shown.COMMAND: _COMMANDS, Shown.JVM_OPTIONS: _JVM,
    Shown.NAMES: ("owner={0},team={0}",),
}  # fmt: skip
_CREDENTIALS = (
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|externalId={0}",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|endpoint=https://u:{0}@sts^eu-west-1",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|endpoint=https://h/{0}?x={0}^eu-west-1",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|externalId={0}=x",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|colour={0}",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|endpoint={0},DefaultCredentialsProvider",
    "StsAssumeRoleCredentialsProvider|arn:aws:iam::123456789012:role/r|me|{0}=x,DefaultCredentialsProvider",
    "StsAssumeRoleCredentialsProvider|{0}|me", "StsAssumeRoleCredentialsProvider|{0}", "NoSuchProvider|{0}",
    "StaticCredentialsProvider|AKIA|{0}", "StaticCredentialsProvider|AKIA|{0},DefaultCredentialsProvider",
    "DefaultCredentialsProvider|{0}", "{0},DefaultCredentialsProvider", "{0}", "some.module:function|{0}",
)  # fmt: skip


def _values(key: Key) -> Iterator[str]:
    if key.kind is ValueKind.CREDENTIALS:
        yield from _CREDENTIALS
    elif key.shown in _BY_SHOWN:
        yield from _BY_SHOWN[key.shown]
    elif key.kind is not ValueKind.TEXT:
        yield from ("{0}", "http://u:{0}@h/", "1 {0}")  # a mistake: a value that was pasted into the wrong line
    else:
        yield from ("{0}", *_PLACES)


def plants() -> Iterator[Plant]:
    """One for each key, spelling and form; the free-form ones by some names."""
    declared = [key for key in (*keys.KEYS, *SPARK_KEYS) if "<" not in key.name and key.name not in SHOWN_IN_FULL]
    spelled = [(name, value) for key in declared for name in key.names for value in _values(key)]
    spelled += [(name, value) for name in sorted(_SPARK_FREE) for value in ("{0}", *_PLACES)]
    spelled += [(f"mld.spark.sink.out.{name}", value) for name in ("path", "options.url") for value in _PLACES]
    spelled += [
        (f"mld.spark.conf.spark.{one}.extraJavaOptions", value) for one in ("driver", "executor") for value in _JVM
    ]
    spelled += [("mld.spark.conf.spark.hadoop.fs.s3a.endpoint", value) for value in _PLACES]
    spelled += [(name, "{0}") for name in ("unknown.key", "mld.unknown", "mld.spark.unknown", "maxRecord")]
    spelled += [(f"of+{{0}}{sign}", "=") for sign in ("/", "+")]  # the rest of a secret whose line was broken
    for number, (name, value) in enumerate(spelled, start=1):
        planted = secret(number)
        yield Plant(name.format(planted), value.format(planted), (planted,))
