"""The manual page bin/mld.1, from the text of `mld --help` and of each command's; `make docs` writes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

import mld
from mld.cli import commands

WIDTH = 10_000  # characters: roff wraps the lines itself


def page(_: str = "") -> str:
    """Return the page in the language of man(7), with no date in it."""
    top = click.Context(commands, info_name="mld", max_content_width=WIDTH, **commands.context_settings)
    lines = [
        f'.TH MLD 1 "" "mld {mld.__version__}" "User Commands"',
        '.\\" Written by `make docs` from the text of `mld --help`.',
        *(".SH NAME", "mld \\- consume a Kinesis stream with one child process per shard"),
        *(".SH SYNOPSIS", *_synopsis(top), ".br", "\\fBmld\\fR APP.properties"),
        *(".SH DESCRIPTION", *_text(commands), *_options(top)),
        ".SH COMMANDS",
    ]
    for name in commands.list_commands(top):
        command = commands.get_command(top, name)
        assert command is not None
        context = click.Context(command, parent=top, info_name=name)
        lines += [f".SS {_escaped(name)}", *_synopsis(context), ".PP", *_text(command), *_options(context)]
    return "\n".join(lines) + "\n"


def _synopsis(context: click.Context) -> Iterator[str]:
    pieces = " ".join(context.command.collect_usage_pieces(context))
    yield f"\\fB{_escaped(context.command_path)}\\fR {_escaped(pieces)}"


def _text(command: click.Command) -> Iterator[str]:
    """Its help: paragraphs are filled, unless a line of a backspace stands above them, which is click's sign."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or "").partition("\f")[0])
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from (".nf", *map(_escaped, paragraph.splitlines()[1:]), ".fi")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _options(context: click.Context) -> Iterator[str]:
    """Every command has `--help`: the page says so once."""
    for parameter in context.command.get_params(context):
        name, text = parameter.get_help_record(context) or ("", "")
        if text and not (context.parent and "--help" in parameter.opts):
            yield from (".TP", f"\\fB{_escaped(name)}\\fR", _escaped(text))


def _escaped(text: str) -> str:
    r"""Return text that roff prints as it is: code in bold, and hyphens that can be copied into a shell."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    plain = re.sub(r"[^\n -~]", lambda one: f"\\[u{ord(one[0]):04X}]", plain)
    bold = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", plain)
    return f"\\&{bold}" if bold.startswith((".", "'")) else bold
