"""The way between Python and the JVM, closed to the other users of this machine.

PySpark would hand every setting to the JVM on its command line, which all users can read; the keys of a bucket would
stand there. Here settings go in a file of this user alone, which is removed when the JVM has read it. What the JVM asks
Python to do (streaming queries do) comes through a port of the loopback interface, and PySpark lets anybody call it;
here the caller must have the token that guards the other direction.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mld.processors.spark.spark_errors import SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = "spark.properties"
ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
FILE_OPTION = "--properties-file"
SHELL = "pyspark-shell"
_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_SPECIAL = frozenset(" =:#!")
CLIENT = "py4j.Gateway"
CLIENT_FIELD = "cbClient"
CONNECTION_LIFE_S = 30
"""Py4J's own default: how long a connection of a call is kept for the next one."""


def start_jvm(settings: Mapping[str, str], scratch: Path) -> None:
    """Start the JVM of this process unless it runs; `scratch` is a directory of this user alone.

    Raises SessionError, and whatever PySpark raises if the JVM does not start.
    """
    from pyspark import SparkContext

    with told(settings, scratch / FILE):
        SparkContext._ensure_initialized()


@contextmanager
def told(settings: Mapping[str, str], file: Path) -> Iterator[None]:
    """Give, while the JVM starts: the file, and the arguments that name it."""
    before = os.environ.get(ARGUMENTS)
    told = arguments(before, file)
    file.unlink(missing_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as opened:
        opened.write(encode(settings))
    os.environ[ARGUMENTS] = told
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        if before is None:
            del os.environ[ARGUMENTS]
        else:
            os.environ[ARGUMENTS] = before


def arguments(given: str | None, file: Path) -> str:
    """Return what PySpark is to call spark-submit with: the user's own arguments, and the file. Raises SessionError."""
    try:
        theirs = shlex.split(given or SHELL)
    except ValueError as error:
        raise SessionError(f"{ARGUMENTS} is no list of arguments: {error}; correct it, or remove it") from error
    if any(word.split("=")[0] == FILE_OPTION for word in theirs):
        raise SessionError(f"{ARGUMENTS} has {FILE_OPTION}, and Spark takes one; write its lines as mld.spark.conf.*")
    # The file takes the place of spark-defaults.conf, unless that is asked for too.
    return shlex.join([FILE_OPTION, str(file), "--load-spark-defaults", *theirs])


def encode(settings: Mapping[str, str]) -> str:
    """Return a properties file of Java's, in ASCII."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character in _SPECIAL:
        return f"\\{character}"
    if " " < character < "\x7f":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def guard_calls_to_python(session: SparkSession) -> None:
    """Make every later call to Python show the token that PySpark and its JVM share.

    Py4J can do it on both sides, but its JVM forgets the token when it is told the port; so its client of that port is
    replaced by one that has it. Raises SessionError if this Py4J has no place for that.
    """
    from pyspark.java_gateway import ensure_callback_server_started

    gateway: Any = session.sparkContext._gateway
    token = gateway.gateway_parameters.auth_token
    if gateway.callback_server_parameters.auth_token == token:
        return
    gateway.callback_server_parameters.auth_token = token
    try:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        _have_jvm_show(token, gateway)
    except Exception as error:  # whatever a future Py4J has changed
        raise SessionError(
            f"calls from the JVM to Python cannot be kept to this user ({str(error).splitlines()[:1]}); use the "
            "PySpark that this version names"
        ) from error


def _have_jvm_show(token: str, gateway: Any) -> None:
    """Replace the JVM's client of our port; the constructor is Py4J's own, the field has no other way to it."""
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    java = gateway.jvm
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    its_gateway = server.getGateway()
    client = java.py4j.PythonClient(
        its_gateway,
        None,
        gateway._callback_server.port,
        java.java.net.InetAddress.getByName(gateway.callback_server_parameters.address),
        CONNECTION_LIFE_S,
        java.java.util.concurrent.TimeUnit.SECONDS,
        java.javax.net.SocketFactory.getDefault(),
        server,
        True,
        0,
        token,
    )
    field = java.java.lang.Class.forName(CLIENT).getDeclaredField(CLIENT_FIELD)
    field.setAccessible(True)
    field.set(its_gateway, client)
