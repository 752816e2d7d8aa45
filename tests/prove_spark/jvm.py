"""A JVM with a Spark session that outlives the Python processes that use it.

A writer of the proof is killed many hundred times; with a JVM of its own each time, a run would take a minute. And a
JVM whose Python process is gone goes on writing what it was told to: what is left of a zombie.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.maven import Jar

CONF = {
    "spark.master": "local[2]",
    "spark.app.name": "prove",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
}
OPTIONS = (
    '--conf "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1" --driver-memory 700m pyspark-shell'
)
"""Compiled quickly rather than well: a JVM here does not live long."""

MORE_OPTIONS = "MLD_PROVE_SPARK_OPTIONS"
"""Variable with more of them, for a sink that needs packages."""
MASTER = "MLD_PROVE_SPARK_MASTER"
"""Variable with another master."""


def with_jars(jars: Iterable[Jar]) -> str:
    """The options of a JVM that has these besides Spark's own."""
    files = ",".join(str(jar.file) for jar in jars)
    return f"--jars {files} {OPTIONS}" if files else OPTIONS


class Bare:
    """One JVM without a session; `environment` lets another Python process attach to it."""

    def __init__(self, options: str = OPTIONS) -> None:
        from pyspark.java_gateway import launch_gateway

        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{os.environ.get(MORE_OPTIONS, '')} {options}"
        for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"):
            os.environ.pop(name, None)
        self._gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
        parameters = self._gateway.gateway_parameters
        self.environment: Mapping[str, str] = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": str(parameters.auth_token),
        }

    def kill(self) -> None:
        self._gateway.proc.kill()
        self._gateway.proc.communicate()
        self._gateway.shutdown_callback_server()  # it would wait for calls of a JVM that lives


class Jvm(Bare):
    """A JVM with a session of ours."""

    def __init__(self, options: str = OPTIONS) -> None:
        super().__init__(options)
        self.session = _attach(self._gateway)

    def kill(self) -> None:
        super().kill()
        _forget()


def attached() -> Any:
    """The session of the JVM that the environment names."""
    from pyspark.java_gateway import launch_gateway

    return _attach(launch_gateway())  # type: ignore[no-untyped-call]


def _attach(gateway: Any) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    java_conf = gateway.jvm.org.apache.spark.SparkConf()
    for key, value in {**CONF, **({"spark.master": os.environ[MASTER]} if MASTER in os.environ else {})}.items():
        java_conf.set(key, value)
    context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate(java_conf)
    java_context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jvm=gateway.jvm, _jconf=java_conf)
    return SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=conf))


def _forget() -> None:
    """Clear what pyspark remembers of a JVM that is gone."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = None
