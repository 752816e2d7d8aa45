"""What may be shown, and how: values of the configuration, secrets in foreign text, characters that steer a terminal.

Rules: configuration#hidden-values. Pure.

Configured values (`redacted`). Secrets cannot be recognized, so nothing is guessed: each key of the table declares how
it is shown, and text that may contain a secret is shown only in the parts with a known meaning. Free-form keys
(settings of Spark, options of its sinks) belong to other programs, and any may carry a password: they are hidden but
for those listed here, whose meaning leaves no room for one. The one guess is on the safe side: a key with a telling
name is always hidden.

Secrets that other users of the machine can read (`remarks_on_exposure`): on a command line, or in a properties file
open to them. Nothing is refused, as the machine may have one user only; each place is named, with the remedy, and never
the value.

Foreign text (`Scrubber`): an exception, an answer, a line of a child. Secrets of the configuration are known: they are
looked for as they are, and in the forms in which programs pass them on. Unknown ones, such as a password in the
environment's proxy, are recognized by their place: before the @ of a URL, after `password=`, after `Bearer`. The work
is linear in the text, whatever it is.

Characters (`printable`): nothing in foreign text ends a line, moves the cursor or reverses text. It may contain line
breaks (Unicode has seven), escape sequences, bidirectional overrides or half a surrogate pair.
"""

from __future__ import annotations

import base64
import json
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from fnmatch import fnmatchcase
from itertools import pairwise
from urllib.parse import quote, quote_plus, unquote

from mld.properties.lines import OVERRIDE_PLACE, Level, Remark, has_file, has_reference

# --- characters -------------------------------------------------------------------------------------------------------

_BEYOND_ASCII = re.compile(r"[^\x20-\x7e]+")


def printable(text: str) -> str:
    """Return `text` with everything but visible characters and plain spaces escaped as in Python: ``\\n``, ``\\x1b``,
    ``\\u2028``. Letters, symbols and marks of all scripts stay. So do backslashes: it cannot be undone."""
    return text if text.isprintable() else _BEYOND_ASCII.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Return the same line by line, for text that keeps its line feeds."""
    return "\n".join(map(printable, text.split("\n")))


def _escaped(match: re.Match[str]) -> str:
    run = match.group()
    return run if run.isprintable() else "".join(map(_escaped_character, run))


def _escaped_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")


# --- free-form keys ---------------------------------------------------------------------------------------------------

_CONF_SHOWN = [
    "spark.app.name",
    "spark.blockManager.port",
    "spark.broadcast.*",
    "spark.checkpoint.dir",
    "spark.cleaner.*",
    "spark.cores.*",
    "spark.default.parallelism",
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.driver.host",
    "spark.driver.maxResultSize*",
    "spark.driver.memory*",
    "spark.driver.port",
    "spark.dynamicAllocation.*",
    "spark.eventLog.dir",
    "spark.eventLog.enabled",
    "spark.executor.cores",
    "spark.executor.heartbeatInterval",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.hadoop.fs.defaultFS",
    "spark.hadoop.fs.s3a.connection.maximum",
    "spark.hadoop.fs.s3a.endpoint",
    "spark.hadoop.fs.s3a.endpoint.region",
    "spark.hadoop.fs.s3a.path.style.access",
    "spark.hadoop.hive.metastore.uris",
    "spark.jars",
    "spark.jars.packages",
    "spark.local.dir",
    "spark.locality.*",
    "spark.master",
    "spark.memory.*",
    "spark.network.timeout",
    "spark.port.maxRetries",
    "spark.pyspark.driver.python",
    "spark.pyspark.python",
    "spark.scheduler.*",
    "spark.serializer",
    "spark.shuffle.*",
    "spark.speculation",
    "spark.speculation.*",
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.catalogImplementation",
    "spark.sql.execution.*",
    "spark.sql.extensions",
    "spark.sql.files.*",
    "spark.sql.orc.*",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.sources.partitionOverwriteMode",
    "spark.sql.streaming.*",
    "spark.sql.warehouse.dir",
    "spark.submit.deployMode",
    "spark.task.*",
    "spark.ui.enabled*",
    "spark.ui.port*",
    "spark.ui.retained*",
]
"""Settings of Spark itself; never a whole family of which some member takes what is secret."""
_CONF_JVM_OPTIONS = frozenset(
    f"spark.{side}.{kind}JavaOptions" for side in ("driver", "executor") for kind in ("default", "extra")
)
_CATALOG = "spark.sql.catalog."  # `<name>` is a class, `<name>.<property>` its settings, credentials among them
_CATALOG_PROPERTIES = frozenset({"type", "warehouse", "uri", "catalog-impl", "io-impl", "s3.endpoint"})
_OPTIONS = frozenset(
    {
        "batchsize",
        "checkpointlocation",
        "compression",
        "database",
        "dateformat",
        "dbtable",
        "driver",
        "encoding",
        "fetchsize",
        "header",
        "isolationlevel",
        "kafka.bootstrap.servers",
        "maxrecordsperfile",
        "mergeschema",
        "numpartitions",
        "overwriteschema",
        "path",
        "querytimeout",
        "table",
        "timestampformat",
        "topic",
        "truncate",
        "url",
    }
)


def conf_shown(name: str) -> Shown:
    """Return how the value of `mld.spark.conf.<name>` is shown."""
    if name in _CONF_JVM_OPTIONS:
        return Shown.JVM_OPTIONS
    if name.startswith(_CATALOG):
        catalog, dot, rest = name.removeprefix(_CATALOG).partition(".")
        return Shown.PLACE if catalog and (not dot or rest in _CATALOG_PROPERTIES) else Shown.HIDDEN
    return Shown.PLACE if any(fnmatchcase(name, one) for one in _CONF_SHOWN) else Shown.HIDDEN


def option_shown(name: str) -> Shown:
    """Return how the value of `mld.spark.sink.<sink>.options.<name>` is shown; Spark takes these names in any case."""
    return Shown.PLACE if name.lower() in _OPTIONS else Shown.HIDDEN


# --- foreign text -----------------------------------------------------------------------------------------------------

SECRET_CHARACTERS_MIN = 6  # shorter ones would be found in half of all words; `true` and `false` are among them
ENVIRONMENT_PLACES = ("_FILE", "_URI", "_PATH", "_DIR")  # variables with telling names that say where something is
DIRECTORIES = ("PWD", "OLDPWD")  # shells set them; a password in them would be one of a path

_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
_TOKEN = re.compile(r"\S+")
_ADDRESS = re.compile(r"(?:jdbc:\w{1,32}:)?//|jdbc:\w{1,32}:")
_WORDS = (
    "passw(?:or)?d|passphrase|pwd|secret|token|api[-_]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|"
    "credential|signature"
)
_HINTS = ("passw", "passphrase", "pwd", "secret", "token", "key", "credential", "sig", "auth")
"""Whatever `_ASSIGNED` finds contains one of them; looking for them costs a tenth as much."""
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s,;&|()\[\]{}"']+)"""
_ASSIGNED = re.compile(
    rf"""((?:(?:{_WORDS})[\w.-]{{0,64}}|\b(?:sig|auth))(?:["']?\s{{0,4}}=\s{{0,4}}|["']\s{{0,4}}:\s{{0,4}}))b?{_VALUE}""",
    re.IGNORECASE,
)
_AUTHORIZED = re.compile(
    r"""\b(Bearer\s{1,4}|authorization["']?\s{0,4}[:=]\s{0,4}["']?(?:\w{1,20}\s+)?)[^\s"',]+""", re.I
)
_PARAMETER = re.compile(r"""=\s*["']?([^&;,(){}\s"']+)""")


class Scrubber:
    """Replaces secrets in text. `hide` adds to what is known."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self.hide(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        self._known |= {form for secret in secrets for form in _forms(secret)}
        longest_first = sorted(self._known, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(_exactly, longest_first))) if longest_first else None

    def __call__(self, text: str) -> str:
        """Return `text` without them."""
        if self._pattern is not None and any(form in text for form in self._known):
            text = self._pattern.sub(HIDDEN, text)
        if "@" in text and _ADDRESS.search(text):
            text = _TOKEN.sub(_without_user, text)
        lower = text.lower()
        if ("=" in text or ":" in text) and any(hint in lower for hint in _HINTS):
            text = _ASSIGNED.sub(rf"\1{HIDDEN}", text)
        if "bearer" in lower or "authorization" in lower:
            text = _AUTHORIZED.sub(rf"\1{HIDDEN}", text)
        return text


def secrets_in(key: str, how: Shown, text: str) -> Iterator[str]:
    """Yield what is secret in a value of the configuration that is shown in the way `how`."""
    if how is not Shown.PARSED and is_secret_key(key):
        yield text
    elif how is Shown.HIDDEN and not (text.isalpha() or text.isdigit()):
        yield text  # a word or a number may stand anywhere in a log: only a telling name makes a secret of it
    if how in (Shown.HIDDEN, Shown.PLACE, Shown.ENDPOINT):
        user, at, _ = text.rpartition("@")
        if at:
            user = user.rpartition("//")[2]
            yield user
            yield user.partition(":")[2]
            yield user.rpartition("/")[2]
    if how in (Shown.HIDDEN, Shown.PLACE, Shown.ENDPOINT, Shown.JVM_OPTIONS):
        yield from _PARAMETER.findall(text)
    if how is Shown.COMMAND:
        words = text.split(" ")
        for before, word in zip(["", *words], words, strict=False):
            name, equals, value = word.partition("=")
            if equals and is_secret_key(name):
                yield value
            elif before.startswith("-") and is_secret_key(before):
                yield word


def secrets_of_environment(env: Mapping[str, str]) -> Iterator[str]:
    """Yield variables with a telling name (AWS_SECRET_ACCESS_KEY), and the users of proxies."""
    for name, value in env.items():
        if _ACCOUNT.fullmatch(value):
            continue  # stand-ins take it for an access key, and it stands in every ARN
        if is_secret_key(name) and not name.endswith(ENVIRONMENT_PLACES) and name not in DIRECTORIES:
            yield value
        elif name.lower().endswith("_proxy"):
            yield from secrets_in(name, Shown.ENDPOINT, value)


def _forms(secret: str) -> Iterator[str]:
    """Yield the secret as it is, and as in URLs, JSON, logs and headers."""
    plain = unquote(secret)
    for text in {secret, plain}:
        forms = (
            text,
            quote(text, safe=""),
            quote_plus(text),
            json.dumps(text)[1:-1],
            repr(text)[1:-1],
            printable(text),
            base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii").rstrip("="),
        )
        yield from (form for form in forms if len(form) >= SECRET_CHARACTERS_MIN)


def _exactly(form: str) -> str:
    """Return a pattern for the form; digits are looked for as a whole number only: sequence numbers hold any others."""
    return rf"(?<![0-9]){form}(?![0-9])" if form.isdigit() else re.escape(form)


def _without_user(match: re.Match[str]) -> str:
    token = match.group()
    address = _ADDRESS.search(token)
    at = token.rfind("@")
    return token if address is None or at < address.end() else f"{token[: address.end()]}{HIDDEN}{token[at:]}"


# --- where others can read --------------------------------------------------------------------------------------------

ON_COMMAND_LINE = "holds a secret and is given on the command line, which every user of this machine can read"
IN_THE_FILE = "keep it in the file (mode 0600), or write ${NAME} there and set the variable in the daemon's environment"
PASSED_ON = "puts a secret on the command line of {whose}, which every user of this machine can read"
_PROVIDER = re.compile(r"provider(dynamodb|cloudwatch)?(\.class)?$|^mld\.stream\..+\.credentials$", re.IGNORECASE)
"""Keys whose value is a class, whatever else is in their names."""
_STATIC = "StaticCredentialsProvider|"
_COMMAND = re.compile(r"(mld\.stream\..+\.)?executableName")
_JAVA_OPTIONS = re.compile(r"\.extraJavaOptions$|\.defaultJavaOptions$")
_JAVA_PROPERTY = re.compile(r"-D([^\s=\"']+)=(?!\s)")


def who_else(mode: int, *, own: bool) -> str | None:
    """Return who can read a file of this mode besides its user. The group of another user's file is how we read it."""
    if mode & stat.S_IROTH:
        return "every user of this machine"
    return "its group" if own and mode & stat.S_IRGRP else None


def remarks_on_exposure(lines: Iterable[tuple[str, str, str]], file_name: str, others: str | None) -> list[Remark]:
    """Warn of secrets that others can read. `lines` are place, key and raw value of everything given; `others` can
    read the file too.
    """
    kept = list(lines)
    remarks = list(_on_command_lines(kept))
    secrets = [name for place, name, raw in kept if place != OVERRIDE_PLACE and _is_secret(name, raw)]
    if others is not None and secrets:
        message = f"holds secrets ({', '.join(dict.fromkeys(secrets))}), and {others} can read it"
        remarks.append(Remark(Level.WARNING, "", file_name, message, f"chmod 600 {file_name}"))
    return remarks


def _on_command_lines(lines: Iterable[tuple[str, str, str]]) -> Iterator[Remark]:
    for place, name, raw in lines:
        if place == OVERRIDE_PLACE and _is_secret(name, raw):
            yield Remark(Level.WARNING, name, place, ON_COMMAND_LINE, IN_THE_FILE)
        # An argument has a telling name, like `password=…`, or is a URL with a user.
        tells = _COMMAND.fullmatch(name) and (any(secrets_in(name, Shown.COMMAND, raw)) or Scrubber()(raw) != raw)
        if tells:
            message = PASSED_ON.format(whose="the record processor")
            yield Remark(Level.WARNING, name, place, message, "children have the daemon's environment: set a variable")
        elif _JAVA_OPTIONS.search(name) and (has_file(raw) or any(map(is_secret_key, _JAVA_PROPERTY.findall(raw)))):
            message = PASSED_ON.format(whose="a JVM")
            remedy = "set it by JDK_JAVA_OPTIONS in the environment, or in a file by -XX:VMOptionsFile="
            yield Remark(Level.WARNING, name, place, message, remedy)


def _is_secret(name: str, raw: str) -> bool:
    """Return whether this line itself holds a secret, rather than a reference to the environment."""
    if not raw.strip() or has_reference(raw):
        return False
    return _STATIC in raw if _PROVIDER.search(name) else is_secret_key(name)


# --- configured values ------------------------------------------------------------------------------------------------

HIDDEN = "***"
SHOWN_CHARACTERS_MAX = 400  # a value longer than this is somebody's mistake; it must not flood the log


class Shown(Enum):
    """How a value is shown."""

    FULL = "in full"  # names, numbers, words of a closed set
    PLACE = (
        "without user, password and parameters"  # a path, a URL of any scheme, class names: up to the first odd sign
    )
    ENDPOINT = "scheme, host and port"
    COMMAND = "program and names of flags"
    JVM_OPTIONS = "sizes, switches and names of properties"
    NAMES = "names without their values"
    PARSED = "as its parser shows it"  # credentials
    HIDDEN = "not at all"


_TELLING = re.compile(
    r"passw|passphrase|pwd|secret|token|api[-_.]?key|access[-_.]?key|account[-_.]?key|private[-_.]?key|external[-_.]?id"
    r"|credential",
    re.IGNORECASE,
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.<>*-]{0,199}", re.ASCII)
_NUMBER = re.compile(r"[-+0-9.,_]{1,40}[A-Za-z%]{0,2}", re.ASCII)
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", re.ASCII)
_SCHEME = re.compile(r"(?:jdbc:[a-z0-9]+:|[a-z][a-z0-9+.-]*:)(?://)?", re.IGNORECASE | re.ASCII)
_ODD = re.compile(r"[^\w.:/\\+~%*,\[\]-]")  # what begins parameters, and what does not belong into a path
_FLAG = re.compile(r"--?[a-z]+(?:-[a-z]+)*", re.ASCII)
_SHORT_FLAG = re.compile(r"-[A-Za-z]", re.ASCII)
_LONG_SHORT_FLAGS = ("-jar", "-cp", "-classpath")
_SCRIPT = re.compile(r"[\w./\\-]+\.(?:py|js|mjs|cjs|ts|rb|pl|php|sh|jar|dll|exe)")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)
_PYTHON = re.compile(r"(?:.*[/\\])?python[0-9.]*", re.ASCII)
_JVM_SWITCH = re.compile(r"-XX:[+-]\w+|-XX:\w+=[0-9]+[kmgKMG%]?|-X(?:m[snx]|ss)[0-9]+[kmgKMG]?", re.ASCII)
_JVM_PROPERTY = re.compile(r"(?P<name>-D[A-Za-z0-9_.]+)=.*", re.ASCII)


def is_secret_key(key: str) -> bool:
    """Return whether the name of a key says that its value is secret."""
    return _TELLING.search(key) is not None


def redacted(key: str, how: Shown, text: str) -> str:
    """Return `text`, the value of `key`, fit for a log."""
    how = Shown.HIDDEN if is_secret_key(key) and how is not Shown.PARSED else how
    match how:
        case Shown.FULL | Shown.PARSED:
            fit = text
        case Shown.PLACE:
            fit = _place(text)
        case Shown.ENDPOINT:
            scheme, separator, rest = _place(text).partition("://")
            host, slash, path = rest.partition("/")
            fit = f"{scheme}{separator}{host}{slash}{HIDDEN if path else ''}" if separator else HIDDEN
        case Shown.COMMAND:
            fit = " ".join(_command(text.split(" ")))
        case Shown.JVM_OPTIONS:
            fit = " ".join(map(_jvm_option, text.split()))
        case Shown.NAMES:
            fit = ",".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in text.split(",") if pair)
        case Shown.HIDDEN:
            fit = HIDDEN
    return fit if len(fit) <= SHOWN_CHARACTERS_MAX else fit[:SHOWN_CHARACTERS_MAX] + "…"


def shown_name(name: str) -> str:
    """Return an undeclared key; hidden unless it is a name, as it may be the rest of a secret whose line was broken."""
    return name if _NAME.fullmatch(name) else HIDDEN


def shown_mistake(raw: str) -> str | None:
    """Return text in the place of another kind of value, if it is only figures or a reference. None if it stays
    hidden.
    """
    return raw if _NUMBER.fullmatch(raw) or _REFERENCE.fullmatch(raw) else None


def where(text: str) -> str:
    """Return a path or an address without user, password and parameters."""
    return redacted("", Shown.PLACE, text)


def _place(text: str) -> str:
    user, at, rest = text.rpartition("@")  # the last one: a password may have others, by mistake
    scheme = _SCHEME.match(text)
    # What precedes `://`, or names a driver, is no user; `user:password@host` has no scheme.
    start = scheme.group() if scheme and (scheme.group().endswith("//") or scheme.group().count(":") == 2) else ""
    if not at:
        return _up_to_odd(text)
    if _ODD.search(user):
        return start + HIDDEN  # it may be a parameter's value that has the @
    return f"{start}{HIDDEN}@{_up_to_odd(rest)}"


def _up_to_odd(text: str) -> str:
    odd = _ODD.search(text)
    return text if odd is None else text[: odd.start()] + HIDDEN


def _command(words: list[str]) -> list[str]:
    """Return the program, a Python module or a script, and the names of flags; all else may be secret."""
    said = [_place(words[0])]
    for before, word in pairwise(words):
        name, equals, _ = word.partition("=")
        if not word or word in _LONG_SHORT_FLAGS or _SHORT_FLAG.fullmatch(word) or _SCRIPT.fullmatch(word):
            said.append(word)
        elif name.startswith("--") and _FLAG.fullmatch(name):
            said.append(name + (f"={HIDDEN}" if equals else ""))
        elif before == "-m" and _PYTHON.fullmatch(words[0]) and _MODULE.fullmatch(word):
            said.append(word)
        else:
            said.append(word[:2] + HIDDEN if _SHORT_FLAG.match(word) else HIDDEN)
    return said


def _jvm_option(word: str) -> str:
    if _JVM_SWITCH.fullmatch(word):
        return word
    match = _JVM_PROPERTY.fullmatch(word)
    return f"{match['name']}={HIDDEN}" if match else HIDDEN
