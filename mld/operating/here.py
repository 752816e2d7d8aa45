"""The commands that talk to a daemon of this machine over its control socket: `mld status`, `log-level` and `tap`.

A supervisor calls `mld status --live` every few seconds: what only people need is imported when it is printed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from mld.core import control_place
from mld.core.control_place import ControlPlace, ControlPlaceError
from mld.core.errors import MldError
from mld.core.terminal import EXIT_FAILURE, EXIT_OK, chosen_file, complain, define_option, file_option
from mld.operating.options import finish, output_option
from mld.properties.redaction import printable
from mld.properties.values import SOCKET_OFF

F = TypeVar("F", bound=Callable[..., Any])
TIMEOUT_S = 5.0
PAGE = "page"
"""The severity of what wakes somebody (`mld.operating.faults`)."""
_MARKS = {"toChild": "->", "fromChild": "<-"}

CHUNK_BYTES = 256 * 1024
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""A look at 10,000 shards has some 5 MB."""


# --- which daemon -----------------------------------------------------------------------------------------------------


def of_daemon(command: F) -> F:
    """Give a command the parameter `wanted`: which daemon the options and the file name."""

    @wraps(command)
    def called(
        files: Sequence[str],
        option_file: str | None,
        overrides: Sequence[str],
        pid: int | None,
        worker: str | None,
        timeout_s: float,
        **rest: Any,
    ) -> Any:
        if len(files) > 1:
            raise click.UsageError(f"give one properties file, not {len(files)}")
        named: tuple[str | None, str | None] = None, None
        if option_file or files or overrides:
            named = _application_of(chosen_file(option_file, files[0] if files else None), overrides)
        return command(WantedDaemon(*named, pid, worker, timeout_s), **rest)

    options = (
        click.argument("files", nargs=-1, metavar="[APP.properties]"),
        file_option,
        define_option,
        click.option("--pid", type=int, help="Of several daemons: the one with this process id."),
        click.option("--worker", metavar="ID", help="Of several daemons: the one with this worker id."),
        click.option(
            "--timeout",
            "timeout_s",
            type=click.FloatRange(min=0.1, max=600),
            default=TIMEOUT_S,
            show_default=True,
            help="Seconds until the daemon must have answered.",
        ),
    )
    asking: Any = called
    for option in reversed(options):
        asking = option(asking)
    return cast("F", asking)


def _application_of(file: str, overrides: Sequence[str]) -> tuple[str, str | None]:
    """Return application and mld.controlSocket of a properties file. Exits with 2 if it cannot be used."""
    from mld.properties.lines import ConfigurationError, Level, Remark
    from mld.properties.loader import load_some

    try:
        values = load_some(file, ("applicationName", "mld.controlSocket"), overrides, os.environ)
        if "applicationName" not in values:
            raise ConfigurationError([Remark(Level.ERROR, "applicationName", file, "is required", "")])
    except ConfigurationError as error:
        complain(error)
    setting = values.get("mld.controlSocket")
    return str(values["applicationName"]), None if setting is None else str(setting)


# --- commands ---------------------------------------------------------------------------------------------------------


@click.command()
@of_daemon
@click.option("--live", "probe", flag_value="live", help="Only whether it makes progress: exit code 0 or 1.")
@click.option("--ready", "probe", flag_value="ready", help="Only whether it has started: exit code 0 or 1.")
@output_option
def status(wanted: WantedDaemon, probe: str | None, output: str) -> None:
    """Show the daemon that runs on this machine: its shards, how far behind, what fails.

    It is asked over a socket that only its user can open, without a port and without AWS. Without a properties file it
    is the one daemon that runs here. --live and --ready are probes for a supervisor: one line, exit code 0 or 1; of
    several workers, such as those of one unit, all must be well.

    Exit code 1 if it does not make progress, or knows of something that should wake somebody.
    """

    def show() -> int:
        if probe is not None:
            verdicts = [link.ask(probe) for link in find_daemons(wanted, os.environ)]
            verdict = next((one for one in verdicts if not one["isMet"]), verdicts[0])
            click.echo(json.dumps(verdict) if output == "json" else printable(str(verdict["words"])))
            return EXIT_OK if verdict["isMet"] else EXIT_FAILURE
        value = find_daemon(wanted, os.environ).ask("status")
        if output == "json":
            click.echo(json.dumps(value, indent=2))
        else:
            from mld.operating.listings import daemon_headline, daemon_listing
            from mld.operating.looking import print_listing

            click.echo(printable(daemon_headline(value)))
            print_listing(daemon_listing(value))
        is_well = value["isAlive"] and not any(one["severity"] == PAGE for one in value["faults"])
        return EXIT_OK if is_well else EXIT_FAILURE

    finish(show)


@click.command()
@of_daemon
@click.argument("shard")
@click.option("--until-exit", is_flag=True, help="End when this child ends; else with the lease of the shard.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def tap(wanted: WantedDaemon, shard: str, until_exit: bool, output: str) -> None:
    """Show what a running child and the daemon say to each other, as it happens.

    SHARD is a shard's id, or its number. Lines to the child are marked ->, lines of the child <-. The daemon never
    waits for this command: lines that it cannot take in time are left out and counted. It shows the data of records.
    """
    if Path(shard).is_file():
        raise click.UsageError(f"name a shard after the file: mld tap {shard} SHARD")
    printer = _print_json if output == "json" else _print_line
    finish(lambda: _follow(find_daemon(wanted, os.environ), shard, until_exit, printer), is_open_ended=True)


def _follow(link: DaemonLink, shard: str, until_exit: bool, printer: Any) -> int:
    for value in link.follow("tap", shard=shard):
        printer(value)
        if value.get("event") == "leaseEnded" or (until_exit and value.get("event") == "childEnded"):
            return EXIT_OK
    printer({"at": time.time(), "event": "daemonLeft", "words": "the daemon has closed the connection: it is stopping"})
    return EXIT_FAILURE


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_line(value: dict[str, Any]) -> None:
    """Print a line for people, with time and direction."""
    if "lost" in value:
        count = value["lost"]
        click.echo(f"-- {count} line{'' if count == 1 else 's'} left out: too many for this terminal")
    elif "line" in value:
        about = [f"{value['bytes']:,} bytes"] if value["bytes"] > len(value["line"]) + 1 else []
        about += [f"{value['records']:,} records"] if value.get("records", 0) > 1 else []
        about += ["cut off"] if value.get("isCut") else []
        more = f"  ({', '.join(about)})" if about else ""
        click.echo(f"{_time(value)} {_MARKS[value['way']]} {printable(value['line'])}{more}")
    elif "words" in value:
        click.echo(f"-- {_time(value)} {printable(value['words'])}")
    else:
        click.echo(f"-- {_situation(value)}")


def _situation(value: dict[str, Any]) -> str:
    child = value["child"] or "no child runs now"
    busy = value["busySeconds"]
    has = "" if busy is None else f", a batch in its hands for {busy:.1f} s"
    state = value["state"] or "waiting"
    return printable(f"{value['shard']}: {state}, {child}{has}")


def _time(value: dict[str, Any]) -> str:
    at = float(value["at"])
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


# --- finding and asking daemons ---------------------------------------------------------------------------------------


class NotReachedError(MldError):
    """No daemon answers, or which one is meant is not clear; the text says what to do."""


class DaemonRefusedError(MldError):
    """The daemon answered that it cannot do what was asked."""


@dataclass(frozen=True, slots=True)
class WantedDaemon:
    """Which daemon is meant: all but the last may be None. `setting` is the value of mld.controlSocket."""

    application: str | None
    setting: str | None
    pid: int | None
    worker: str | None
    timeout_s: float


class DaemonLink:
    """A daemon whose control socket is there."""

    def __init__(self, place: ControlPlace, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s

    def ask(self, what: str, **more: object) -> dict[str, Any]:
        """Return the answer. Raises NotReachedError or DaemonRefusedError."""
        with closing(self.follow(what, **more)) as lines:
            return next(lines)

    def follow(self, what: str, **more: object) -> Generator[dict[str, Any], None, None]:
        """Yield the answer, and then what follows it, for as long as the daemon sends. Raises the same errors.

        Only the answer has a bound of time.
        """
        with self._connected() as connection:
            try:
                connection.sendall(json.dumps({"ask": what, **more}).encode() + b"\n")
                lines = _lines(connection, time.monotonic() + self._timeout_s)
                first = json.loads(next(lines, b"null"))
            except TimeoutError:
                raise NotReachedError(
                    f"the daemon {self._pid_or_place(connection)} does not answer within {self._timeout_s:g} s: its "
                    "event loop hangs, or the machine is overloaded"
                ) from None
            except OSError as error:
                raise NotReachedError(f"the daemon at {self.place.path} broke off: {error.strerror}") from None
            except (ValueError, RecursionError):
                first = None
            match first:
                case {"answer": dict(answer)}:
                    yield answer
                case {"error": str(words)}:
                    raise DaemonRefusedError(words)
                case _:
                    raise NotReachedError(
                        f"what listens at {self.place.path} gave no answer: is it a daemon that is stopping?"
                    )
            connection.settimeout(None)
            try:
                for line in lines:
                    yield json.loads(line)
            except OSError:
                return

    def _pid_or_place(self, connection: socket.socket) -> str:
        peer = control_place.peer_of(connection)
        return f"at {self.place.path}" if peer is None else f"with pid {peer.pid}"

    def pid(self) -> int | None:
        """Return the pid of the process that listens; None if the system does not tell."""
        with self._connected() as connection:
            peer = control_place.peer_of(connection)
        return None if peer is None else peer.pid

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        place, uid = self.place, os.geteuid()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(self._timeout_s)
            try:
                with _address_of(place) as address:
                    connection.connect(address)
            except ControlPlaceError as error:
                raise NotReachedError(str(error)) from None
            except (ConnectionRefusedError, FileNotFoundError):
                raise NotReachedError(f"no daemon listens at {place.path}") from None
            except OSError as error:
                why = error.strerror or error
                raise NotReachedError(f"the daemon at {place.path} cannot be reached: {why}") from None
            peer = control_place.peer_of(connection)
            if peer is not None and peer.uid != uid:
                raise NotReachedError(f"what listens at {place.path} is of user {peer.uid}, not of this one ({uid})")
            yield connection


@contextmanager
def _address_of(place: ControlPlace) -> Iterator[str]:
    """Yield the address of a socket, while its directory is open. Raises ControlPlaceError."""
    handle = control_place.open_directory(place.directory, os.geteuid(), make=False)
    try:
        yield control_place.address_of(handle, place.directory, place.name)
    finally:
        os.close(handle)


def _lines(connection: socket.socket, until: float) -> Iterator[bytes]:
    """Yield whole lines; the first must have come by `until`, in monotonic seconds. Raises TimeoutError."""
    waiting = bytearray()
    is_first = True
    while len(waiting) <= ANSWER_BYTES_MAX:
        if is_first:
            connection.settimeout(max(0.001, until - time.monotonic()))
        data = connection.recv(CHUNK_BYTES)
        if not data:
            return
        searched = len(waiting)
        waiting += data
        while (end := waiting.find(b"\n", searched)) >= 0:
            yield bytes(waiting[:end])
            is_first = False
            del waiting[: end + 1]
            searched = 0


def find_daemon(wanted: WantedDaemon, environ: Mapping[str, str]) -> DaemonLink:
    """Return the daemon that is meant. Raises NotReachedError if there is none, or more than one."""
    found = find_daemons(wanted, environ)
    if len(found) > 1:
        raise NotReachedError(f"there are {len(found)} daemons, choose one by --pid or --worker: {_listed(found)}")
    return found[0]


def find_daemons(wanted: WantedDaemon, environ: Mapping[str, str]) -> list[DaemonLink]:
    """Return those that are meant, such as the workers of one unit. Raises NotReachedError if there is none."""
    if wanted.setting == SOCKET_OFF:
        raise NotReachedError("mld.controlSocket is off, so the daemon cannot be asked")
    if wanted.setting is not None:
        path = Path(wanted.setting)
        return [DaemonLink(ControlPlace(path.parent, path.name), wanted.timeout_s)]
    uid = os.geteuid()
    alive = [place for place in control_place.sockets_of(wanted.application, environ, uid) if _is_alive(place)]
    links = [DaemonLink(place, wanted.timeout_s) for place in alive]
    if not links:
        raise NotReachedError(_nobody(wanted.application, environ, uid))
    if wanted.pid is None and wanted.worker is None:
        return links
    if found := [link for link in links if _is_wanted(link, wanted)]:
        return found
    named = " and ".join(
        f"{name} {value}" for name, value in (("pid", wanted.pid), ("worker", wanted.worker)) if value is not None
    )
    raise NotReachedError(f"no daemon with {named} answers here; there are: {_listed(links)}")


def _is_alive(place: ControlPlace) -> bool:
    try:
        with _address_of(place) as address:
            return control_place.is_answered(address)
    except ControlPlaceError:
        return False


def _is_wanted(link: DaemonLink, wanted: WantedDaemon) -> bool:
    try:
        if wanted.worker is None and link.pid() == wanted.pid:
            return True
        who = link.ask("who")
    except MldError:
        return False
    return wanted.pid in (None, who.get("pid")) and wanted.worker in (None, who.get("worker"))


def _listed(links: Sequence[DaemonLink]) -> str:
    return ", ".join(map(_named, links))


def _named(link: DaemonLink) -> str:
    try:
        who = link.ask("who")
        return f"pid {who.get('pid')} (worker {who.get('worker')}, application {who.get('application')})"
    except MldError as error:
        return str(error)


def _nobody(application: str | None, environ: Mapping[str, str], uid: int) -> str:
    """Say that there is none, and where one of another user may be."""
    whose = "" if application is None else f" of application {application}"
    words = f"no daemon{whose} answers on this machine for this user"
    foreign = [
        f"{place} is of user {place.stat().st_uid}"
        for place in control_place.places_to_look(environ, uid)
        if place.is_dir() and place.stat().st_uid != uid
    ]
    if foreign:
        return f"{words}; {', '.join(foreign)}: run the command as the daemon's user"
    return f"{words}: is it running, as this user, and not with mld.controlSocket=off?"
