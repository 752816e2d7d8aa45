"""`ServiceFacts`: everything that goes into the systemd unit of a daemon: its command, and what it needs of this
machine.

`mld.operating.service_unit` makes the text of the unit from these facts.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import mld
from mld.properties.loader import LoadedConfiguration, entries_of, load
from mld.properties.redaction import is_secret_key
from mld.properties.references import has_reference
from mld.properties.scrubber import SECRET_CHARACTERS_MIN
from mld.properties.settings import Settings
from mld.properties.spark_names import PREFIX, PROGRAM, SINK_PREFIX
from mld.properties.values import DeadLetterKind
from mld.protocol.child_command import split_command

SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The search path that systemd gives to a service."""
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")
"""Matches what is replaced in the name of an application, to make it the name of a service."""
CREDENTIALS_DIRECTORY = "CREDENTIALS_DIRECTORY"
_NO_JIT = re.compile(r"python[0-9.]*|mld-zygote|.*\.py|perl[0-9.]*|ruby[0-9.]*|bash|sh|dash")
"""Matches the names of programs that do not compile code while they run."""
_HOMES = ("/home", "/root", "/run/user")
"""Directories that the unit hides from the service, unless it needs a file in them."""
_VARIABLE = re.compile(r"(?<!\$)\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
"""Matches a reference to an environment variable, ``${NAME}``; not ``$${NAME}``, which stands for itself."""
_CREDENTIAL = re.compile(r"\$\{file:\$\{CREDENTIALS_DIRECTORY\}/([^/${}]+)\}", re.ASCII)
"""Matches a reference to a file in $CREDENTIALS_DIRECTORY, where systemd puts secrets."""
_SPARK_DIRECTORIES = ("deadLetter", "spool")
"""Settings of Spark that name a directory to which it writes."""
_SPARK_PATHS = ("pipeline", "files")
"""Settings of Spark that name files to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """The facts for the unit of one service. Paths are absolute."""

    name: str
    """Name of the service, as in ``systemctl status NAME``."""
    stream: str
    command: tuple[str, ...]
    """The command line that starts the daemon, with the properties file and overrides."""
    grace_s: float
    """Longest duration of a graceful stop, in seconds; then the daemon ends its children by force."""
    child_stop_s: float
    """Seconds between the steps that end a child process."""
    user: str | None = None
    """An existing account; None if systemd is to make one up while the service runs."""
    group: str | None = None
    working_directory: str | None = None
    """None means the service's state directory."""
    search_path: str | None = None
    python_path: str | None = None
    writable: tuple[str, ...] = ()
    is_in_home: bool = False
    """Whether a path that the service uses is below /home, /root or /run/user."""
    makes_code: bool = False
    """Whether the children may compile code while they run, as a JVM or Node.js does."""
    is_spark: bool = False
    variables: tuple[str, ...] = ()
    """Environment variables that the properties file refers to."""
    credentials: tuple[str, ...] = ()
    """Names of the files that the properties file reads from $CREDENTIALS_DIRECTORY."""


def service_name(settings: Settings) -> str:
    """Return the name of an application's service."""
    return f"mld-{_ODD.sub('-', settings.application_name).strip('-.') or 'application'}"


class UnitRefused(Exception):
    """Raised if the unit cannot be made. The message is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How the present command was started: its program, interpreter, directory and environment."""

    argv0: str
    python: str
    directory: Path
    env: Mapping[str, str]


def loaded_for_unit(file: str, overrides: Sequence[str], env: Mapping[str, str]) -> LoadedConfiguration:
    """Return the file as the service will load it, with a dummy for each secret. Raises ConfigurationError."""
    known = {CREDENTIALS_DIRECTORY: "/run/credentials", **env}
    return load(file, overrides, known, read_file=lambda path: "secret")


def service_of(
    loaded: LoadedConfiguration,
    file: str,
    overrides: Sequence[str],
    around: Surroundings,
    *,
    user: str | None,
    group: str | None,
) -> tuple[ServiceFacts, list[str]]:
    """Return the facts for the unit, and remarks about further steps for the operator.

    `overrides` are the `-D` options for the daemon's command line; `around` is how the present command was started,
    from which the daemon's program and directory follow. Raises UnitRefused if an override has a secret in it.
    """
    _refuse_secrets(overrides, loaded.secrets)
    settings = loaded.settings
    path = str((around.directory / file).absolute())
    child_command = split_command(settings.child.command)
    daemon, python_path = _daemon_command(around)
    stream_lists = () if settings.streams_file is None else (settings.streams_file,)
    executable_names = (one.executable_name for one in settings.streams)
    commands = [child_command, *(split_command(name) for name in executable_names if name is not None)]
    # The service runs in this directory if a command, or a list of streams, may name a file in it.
    possible_paths = [word for one_command in commands for word in _possible_paths(one_command, loaded.spark)]
    needs_directory = any(_is_here(word, around.directory) for word in (*possible_paths, *stream_lists))
    writable = tuple(_writable(loaded, child_command, around.directory, runs_there=needs_directory))
    program, search_path = _program(child_command[0], around)
    directory = str(around.directory) if needs_directory else None
    # A unit hides home directories, unless a file that the service needs is below one, or leads there by a link.
    needed = [
        *daemon[:1],
        around.python,
        path,
        *stream_lists,
        *writable,
        *filter(None, (python_path, directory, program)),
    ]
    used_paths = [found for one in needed for found in (Path(one), Path(one).resolve())]
    is_spark = any(PurePath(one_command[0]).name == PROGRAM for one_command in commands)
    variables, credentials = _references((path, *stream_lists))
    service = ServiceFacts(
        name=service_name(settings),
        stream=settings.stream_title,
        command=(*daemon, "run", *(f"-D{text}" for text in overrides), path),
        grace_s=settings.shutdown_grace_s,
        child_stop_s=settings.child.stop_timeout_s,
        user=user,
        group=group,
        working_directory=directory,
        search_path=search_path,
        python_path=python_path,
        writable=writable,
        is_in_home=any(path.is_relative_to(home) for path in used_paths for home in _HOMES),
        makes_code=any(_NO_JIT.fullmatch(PurePath(one_command[0]).name) is None for one_command in commands),
        is_spark=is_spark,
        variables=variables,
        credentials=credentials,
    )
    return service, list(_remarks(service, path))


def _refuse_secrets(overrides: Sequence[str], secrets: Sequence[str]) -> None:
    """Raise UnitRefused if an override has a secret in it."""
    for text in overrides:
        name = text.partition("=")[0].strip()
        has_secret = any(len(secret) >= SECRET_CHARACTERS_MIN and secret in text for secret in secrets)
        if has_secret or (is_secret_key(name) and not has_reference(text)):
            raise UnitRefused(
                f"-D {name} would put a secret into the unit and on a command line, which every user can read; "
                "write it into the properties file, as ${file:${CREDENTIALS_DIRECTORY}/NAME}"
            )


def _daemon_command(around: Surroundings) -> tuple[tuple[str, ...], str | None]:
    """Return the command that starts mld here, and the PYTHONPATH that it needs, if any."""
    root = Path(mld.__file__).resolve().parents[1]
    named = around.directory / around.argv0
    beside_python = Path(around.python).parent / "mld"
    launcher = root / "bin" / "mld"
    for program in (named, beside_python, launcher):
        if program.name == "mld" and program.is_file() and os.access(program, os.X_OK):
            return (str(program.absolute()),), None
    return (around.python, "-m", "mld"), str(root)


def _program(word: str, around: Surroundings) -> tuple[str | None, str | None]:
    """Return the path of the processor's program, and a search path if a service needs one to find the program."""
    if "/" in word:
        return str((around.directory / word).absolute()), None
    beside_python = str(Path(around.python).parent)
    found = shutil.which(word, path=around.env.get("PATH")) or shutil.which(word, path=beside_python)
    if found is None:
        return None, None
    # A daemon also looks beside its Python interpreter for the program.
    found_by_service = shutil.which(word, path=SERVICE_PATH) or shutil.which(word, path=beside_python)
    return found, None if found_by_service == found else f"{Path(found).parent}:{SERVICE_PATH}"


def _possible_paths(command: Sequence[str], spark: Mapping[str, str]) -> Iterator[str]:
    """Yield words of a command, and settings of Spark, that may name a file or module by a relative path."""
    for before, word in zip(["", *command], command, strict=False):
        if before == "-m":
            module = word.split(".")[0]
            if module != "mld":  # ours are installed
                yield from (module, f"{module}.py")
        elif not word.startswith(("/", "-")) and (before or "/" in word):  # a program without a slash is found by PATH
            yield word
    for name in _SPARK_PATHS:
        yield from (part.rsplit(":", 1)[0].strip() for part in spark.get(PREFIX + name, "").split(","))


def _is_here(word: str, directory: Path) -> bool:
    """Return whether the word names a file below this directory. The word `.` does not count, because it fits any
    directory.
    """
    names_one = bool(PurePath(word).parts) and not word.startswith(("/", "..")) and "\0" not in word
    return names_one and (directory / word).exists()


def _writable(
    loaded: LoadedConfiguration, command: Sequence[str], directory: Path, *, runs_there: bool
) -> Iterator[str]:
    """Yield the directories, other than the service's own, to which the daemon or its children write. `command` is the
    command of the record processor. Relative paths count only if the service runs in `directory` (`runs_there`).
    """
    found: list[str] = []
    dead_letter = loaded.settings.child.dead_letter
    if dead_letter is not None and dead_letter.kind is DeadLetterKind.DIRECTORY:
        found.append(dead_letter.name)
    arguments = [word for word in command[1:] if word.startswith("/") or _is_here(word, directory)]
    found += [word for word in arguments if (directory / word).is_dir()]
    for name, value in loaded.spark.items():
        is_sink = name.startswith(SINK_PREFIX) and name.endswith(".path")
        if is_sink or name.removeprefix(PREFIX) in _SPARK_DIRECTORIES:
            found.append(value.removeprefix("file://"))
    for path in dict.fromkeys(found):
        if path.startswith("/"):
            yield path
        elif "://" not in path and runs_there:
            yield str(directory / path)


def _references(files: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the environment variables and the names of credential files that these files refer to."""
    values = [entry.value for file in files for entry in entries_of(file)[0]]
    variables = (name for value in values for name in _VARIABLE.findall(value))
    credentials = (name for value in values for name in _CREDENTIAL.findall(value))
    return tuple(dict.fromkeys(name for name in variables if name != CREDENTIALS_DIRECTORY)), tuple(
        dict.fromkeys(credentials)
    )


def _remarks(service: ServiceFacts, file: str) -> Iterator[str]:
    """Yield sentences on what the operator has to do besides installing the unit."""
    if service.is_in_home:
        yield "something it needs is below a home directory, which the unit has to show: move it to /opt, /etc and /var"
    if service.user is None:
        if not Path(file).stat().st_mode & stat.S_IROTH:
            yield (
                f"the account that systemd makes up may not read {file}: keep secrets out of it (${{file:…}}) and "
                "chmod 644, or give --user"
            )
        if service.writable:
            yield f"the account changes: {', '.join(service.writable)} would be nobody's; give --user"
    missing = [path for path in service.writable if not Path(path).is_dir()]
    if missing:
        owner = f" -o {service.user}" if service.user else ""
        yield f"make what must exist before the service starts: install -d -m 0700{owner} {' '.join(missing)}"
    private = [path for path in service.writable if PurePath(path).is_relative_to("/tmp")]  # noqa: S108
    if private:
        yield f"{', '.join(private)} will be in a /tmp that only the service sees; choose another place"
    if service.variables:
        yield f"write {', '.join(service.variables)} into /etc/mld/{service.name}.env (root's, mode 0600)"
    for name in service.credentials:
        yield f"write the secret {name} into /etc/mld/{name} (root's, mode 0600)"
