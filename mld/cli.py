"""The command line: parsing and printing only. Each command imports the modules that do its work.

`mld APP.properties` means `mld run APP.properties`. The options `-p` and `-l` are those of the Java daemon
(protocol#command-line-of-java).
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import CompletionItem

import mld
from mld.command_list import MODULE_OF, SECTIONS
from mld.core.errors import MldError
from mld.core.installed import NotReadyError
from mld.core.java_command import why_no_option, why_no_program
from mld.core.terminal import (
    EXIT_CONFIGURATION,
    EXIT_FAILURE,
    Duration,
    chosen_file,
    complain,
    leave_terminal,
    open_standard_streams,
    properties_file,
    say,
    say_what_is_logged,
)

if TYPE_CHECKING:
    from mld.daemon.group_membership import Membership
    from mld.daemon.reload import LogOptions
    from mld.properties.loader import LoadedConfiguration
    from mld.properties.settings import Settings

logger = logging.getLogger(__name__)

NEARNESS_MIN = 0.7
"""A word that is at least this similar (0 to 1) to the name of a command is taken for that name, misspelt."""
_GROUP_OPTIONS = frozenset({"--help", "-h", "--version"})
COLLECT_EVERY = 50_000
"""New objects between two collections of garbage. Imports make up to 70,000 objects, and hardly any garbage."""
_WORDS = "mld.words"
"""Key in click's context under which the words of the command line are kept."""


_REMOVED = {
    "log-level": "set mld.logLevel in the file, and send the daemon SIGHUP, as `systemctl reload` does",
    "top": "use `mld lag --watch`, `mld leases --watch` or `mld workers --watch`",
    "teardown": "save the rows with `mld export`, then delete the tables and the consumer with the AWS CLI",
    "migrate-streams": "use `mld export`, then `mld restore --from-another` with a file of the other form",
}
"""Commands that earlier versions of mld had, and what to use instead."""


class _Commands(click.Group):
    """The group of all commands. If the first word is no command, but a properties file or an option of `run`, it runs
    `run`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        complains = not ctx.resilient_parsing  # while a shell completes a word, an error cannot be shown
        if args and args[0] in _REMOVED and complains:
            raise click.UsageError(self.why_unknown(ctx, args[0]))
        if args and complains and (why := why_no_program(args[0])):
            raise click.UsageError(why)
        if args and args[0] not in self.list_commands(ctx) and args[0] not in _GROUP_OPTIONS:
            is_misspelt = get_close_matches(args[0], self.list_commands(ctx), 1, NEARNESS_MIN)
            if is_misspelt and complains and not Path(args[0]).exists():
                raise click.UsageError(self.why_unknown(ctx, args[0]))
            args = ["run", *args]
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. For an option of the Java daemon that the command does not know, raise an error that says
        what to do instead.
        """
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            words = ctx.meta[_WORDS]
            why = why_no_option(words, error.option_name) if words[0] in ("check", "run") else None
            if why is None:
                raise
            raise click.UsageError(why, error.ctx) from None

    def why_unknown(self, ctx: click.Context, name: str) -> str:
        """Return the error message for a command that does not exist. It says what to use instead."""
        if name in _REMOVED:
            return f"there is no `mld {name}` any more: {_REMOVED[name]}"
        near = get_close_matches(name, self.list_commands(ctx), 1, NEARNESS_MIN)
        return f"there is no command {name!r}: " + (f"did you mean `mld {near[0]}`?" if near else "`mld help` has all")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *MODULE_OF])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name, importing only its own module; None if there is no such command."""
        if cmd_name not in MODULE_OF:
            return super().get_command(ctx, cmd_name)
        say_what_is_logged()
        found: click.Command = getattr(import_module(MODULE_OF[cmd_name]), cmd_name.replace("-", "_"))
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands by sections. The modules of the commands are not imported for this."""
        width = max(len(name) for listed in SECTIONS.values() for name in listed)
        for title, listed in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in listed.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin with `incomplete`, for a shell. Their modules are not imported for this."""
        listed = {name: text for section in SECTIONS.values() for name, text in section.items()}
        named = [CompletionItem(name, help=text) for name, text in listed.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Consume a Kinesis stream with one child process per shard. `mld APP.properties` runs the daemon.",
)
@click.version_option(mld.__version__, prog_name="mld", message="%(prog)s %(version)s")
def commands() -> None:
    """Run one of the commands."""


@commands.command("help")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.pass_context
def show_help(ctx: click.Context, name: str | None) -> None:
    """Show all commands, or the options of one, as `mld COMMAND --help` does."""
    assert ctx.parent is not None and isinstance(ctx.parent.command, _Commands)
    group, about = ctx.parent.command, ctx.parent
    if name is not None:
        if (command := group.get_command(ctx.parent, name)) is None:
            raise click.UsageError(group.why_unknown(ctx.parent, name))
        about = click.Context(command, parent=ctx.parent, info_name=name)
    click.echo(about.get_help())


def main() -> NoReturn:
    """Run the command line, for the console script and for `python -m mld`."""
    open_standard_streams()
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)  # what a last collection would find, the end of the process frees as well
    if "_MLD_COMPLETE" in os.environ:  # a shell asks click to complete a word
        leave_terminal()
    commands(prog_name="mld")
    raise AssertionError("click exits by itself")


@commands.command()
@properties_file
@click.option(
    "-l",
    "--log-configuration",
    metavar="FILE",
    help="Logging configuration of the Java daemon. Of logback XML, the levels of root and of mld's own loggers "
    "(mld.…) are used; those of Java's loggers have no effect.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    help="Overrides mld.logLevel of the file, whose default is info.",
)
@click.option("--until-caught-up", is_flag=True, help="End once every shard has reached the tip; for runs by cron.")
@click.option("--max-time", "time_max_s", type=Duration(), help="With --until-caught-up: end after this time.")
@click.option("--processes", metavar="N|auto", help="Number of workers, each a process; overrides mld.processes.")
def run(
    argument_file: str | None,
    option_file: str | None,
    log_configuration: str | None,
    overrides: Sequence[str],
    log_format: str,
    log_level: str | None,
    until_caught_up: bool,
    time_max_s: float | None,
    processes: str | None,
) -> None:
    """Run the daemon until it is told to stop.

    Exit codes: 0 stopped gracefully, 1 failed, 2 bad configuration, 128+n ended by signal n before the stop was done.
    With --until-caught-up: 0 everything was processed and checkpointed, or other workers are at work; 1 not yet.
    """
    if time_max_s is not None and not until_caught_up:
        raise click.UsageError("--max-time goes with --until-caught-up")
    if processes is not None and until_caught_up:
        raise click.UsageError("--until-caught-up is for one worker: leave --processes out")
    from mld.daemon.group_membership import claim_definitions, claim_membership
    from mld.logging import logs
    from mld.properties.remarks import ConfigurationError

    file = chosen_file(option_file, argument_file)
    overrides = (*overrides, *claim_definitions(os.environ))
    if processes is not None:
        overrides = (*overrides, f"mld.processes={processes}")
    try:
        loaded, options = _load_and_log(file, overrides, log_format, log_level, log_configuration)
        membership = claim_membership(os.environ)
        if membership is None:
            logs.log_remarks(loaded.remarks)
            if not until_caught_up and loaded.settings.processes != 1:
                of_log = _words_of_log_options(log_format, log_level, log_configuration)
                _run_group_if_several(file, loaded.settings, of_log, overrides)
        else:
            logs.name_worker(membership.worker_id)  # the supervisor of the group has logged the remarks
        _run_worker(file, loaded, overrides, options, membership, until_caught_up, time_max_s)
    except ConfigurationError as error:
        complain(error)


def _load_and_log(
    file: str, overrides: Sequence[str], log_format: str, log_level: str | None, log_configuration: str | None
) -> tuple[LoadedConfiguration, LogOptions]:
    """Begin to log, and load the settings. Then make the log hide the secrets among them, and use their log level.

    Raises ConfigurationError.
    """
    from mld.daemon.reload import LogOptions
    from mld.logging import logs
    from mld.properties.loader import load
    from mld.properties.values import LogLevel

    scrub = logs.configure(log_format, log_level or "info", log_configuration, os.environ)
    started_at = time.monotonic()
    loaded = load(file, overrides, os.environ)
    scrub.hide(loaded.secrets)
    options = LogOptions(scrub, log_level, log_configuration, os.environ)
    if loaded.settings.log_level is not LogLevel.INFO:
        options.apply(loaded.settings, options.read())
    took_ms = round((time.monotonic() - started_at) * 1000, 1)
    logger.debug("settings loaded", extra={"action": "settings_loaded", "took_ms": took_ms})
    return loaded, options


def _words_of_log_options(log_format: str, log_level: str | None, log_configuration: str | None) -> list[str]:
    """Return the words of a command line that give another `mld run` the same options about the log."""
    words = ["--log-format", log_format]
    words += ["--log-level", log_level] if log_level else []
    words += ["-l", log_configuration] if log_configuration else []
    return words


def _run_group_if_several(file: str, settings: Settings, of_log: Sequence[str], overrides: Sequence[str]) -> None:
    """Run a process for each worker, and exit when they have ended. If only one worker is wanted, return at once."""
    import asyncio

    from mld.daemon.run_group import run_group, workers_wanted

    if (count := workers_wanted(settings)) > 1:
        sys.exit(asyncio.run(run_group(settings, count, file, of_log, overrides)))


def _run_worker(
    file: str,
    loaded: LoadedConfiguration,
    overrides: Sequence[str],
    options: LogOptions,
    membership: Membership | None,
    until_caught_up: bool,
    time_max_s: float | None,
) -> NoReturn:
    """Run one worker in this process, and exit when it has ended. `membership` is its place in a group of worker
    processes; None if it is in none. `time_max_s` limits a run `until_caught_up`, and no other; None: no limit.
    """
    from mld.daemon import event_loop
    from mld.daemon.process import RunRequest, run_daemon
    from mld.daemon.reload import Reloader
    from mld.daemon.streams_reader import StreamsReader
    from mld.daemon.until_tip import UntilTip

    path = str(Path(file).absolute())
    reloader = Reloader(loaded, path, overrides, os.environ, options)
    until_tip = UntilTip(time_max_s, path) if until_caught_up else None
    streams_reader = StreamsReader(loaded.settings.streams, loaded.streams_file, options.scrub)
    request = RunRequest(loaded.settings, path, overrides, reloader, until_tip, streams_reader, membership)
    sys.exit(event_loop.run(run_daemon(request), event_loop.loop_factory()))


@commands.command()
@properties_file
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.option("--all", "show_all", is_flag=True, help="Show keys with default values too.")
@click.option("--leases", type=click.IntRange(min=1), help="Price of a fleet with this many leases (shards).")
@click.option("--workers", type=click.IntRange(min=1), help="Price of a fleet of this many workers.")
def check(
    argument_file: str | None,
    option_file: str | None,
    overrides: Sequence[str],
    output: str,
    as_json: bool,
    show_all: bool,
    leases: int | None,
    workers: int | None,
) -> None:
    """Show what a properties file means, what is wrong with it, and what it costs.

    Each key is shown with its effective value, the place of that value, and remarks; then the monthly price of DynamoDB
    for a fleet at rest, by failoverTimeMillis. Exit code 2 if there are errors.
    """
    from mld.check.command import print_check

    if as_json:
        say("--json is -o json now; the next version of mld knows only that")
    as_json = as_json or output == "json"
    file = chosen_file(option_file, argument_file)
    try:
        code = print_check(file, overrides, as_json=as_json, show_all=show_all, leases=leases, workers=workers)
    except BrokenPipeError:  # click then ends without a message
        raise
    except OSError as error:  # for example, stdout is a file on a full disk
        say(str(error))
        code = EXIT_FAILURE
    sys.exit(code)


@commands.command(context_settings={"ignore_unknown_options": True})
@click.option("--timeout", "timeout_s", type=float, default=30.0, show_default=True, help="Seconds for each answer.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def conformance(timeout_s: float, command: Sequence[str]) -> None:
    """Examine a record processor by scripted conversations, and judge it: `mld conformance -- COMMAND ARGS…`."""
    from mld.check.conformance import run as judge

    sys.exit(0 if judge(list(command), timeout_s=timeout_s, out=sys.stdout) else EXIT_FAILURE)


@commands.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=4567, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--allow-host",
    "allow_hosts",
    metavar="NAME",
    multiple=True,
    help="Host name (without port) that clients may use for this server.",
)
@click.option("--enforce/--no-enforce", default=False, help="Throttle as AWS does (5 reads a second and shard, …).")
@click.option(
    "--stream",
    "streams",
    metavar="NAME[:SHARDS]",
    multiple=True,
    help="Kinesis stream to create at the start; an ARN instead of the name creates it in another account or region.",
)
def local(host: str, port: int, allow_hosts: Sequence[str], enforce: bool, streams: Sequence[str]) -> None:
    """Run the embedded AWS in the foreground: Kinesis, DynamoDB and its streams, CloudWatch, STS and Glue."""
    from mld.local.server import FirstStreamError, first_stream, run_foreground

    try:
        wanted = [first_stream(text) for text in streams]
    except FirstStreamError as error:
        raise click.BadParameter(str(error), param_hint="--stream") from None
    sys.exit(_guarded(lambda: run_foreground(host, port, allow_hosts=allow_hosts, enforce=enforce, streams=wanted)))


@commands.command()
@click.option(
    "--records",
    type=click.IntRange(min=100),
    default=20_000,
    show_default=True,
    help="Number of records to put.",
)
@click.option("--directory", type=click.Path(file_okay=False), default="quickstart-data", show_default=True)
@click.option("--plain", is_flag=True, help="Use the archive processor, without Spark and Java.")
def quickstart(records: int, directory: str, plain: bool) -> None:
    """Try mld on this machine: it puts click events into an embedded AWS, splits a shard, and runs the real daemon with
    a pipeline on Spark that writes Parquet files.

    Exit codes: 0 the results add up, 1 they do not, 2 a package or Java is missing.
    """
    from mld.quickstart import run_quickstart

    sys.exit(_guarded(lambda: run_quickstart(records, directory, plain=plain)))


def _guarded(action: Callable[[], int]) -> int:
    """Return the exit code of `action`. If it raises an error of mld or of the system, print that, and return a code
    for it.
    """
    try:
        return action()
    except NotReadyError as error:
        say(str(error))
        return EXIT_CONFIGURATION
    except (MldError, OSError) as error:
        say(str(error))
        return EXIT_FAILURE
