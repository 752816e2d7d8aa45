"""Guesses from the files of a record processor which generation of the child protocol it speaks.

Rule: configuration#effective-values. `mld check` warns if `mld.protocolVersion` seems to be wrong, because the mistake
shows late: a program for KCL 1.x works until a shard ends or a lease is lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mld.core.installed import find_executable
from mld.properties.named_file import NamedFileError, beginning_of
from mld.properties.remarks import Level, Remark
from mld.properties.settings import Settings
from mld.protocol.child_command import split_command
from mld.protocol.messages import Dialect

KEY = "mld.protocolVersion"
SOURCE_BYTES_MAX = 256 * 1024
_KCLPY = re.compile(r"^\s*(?:from|import)\s+amazon_kclpy\b", re.MULTILINE)
_NEW = re.compile(r"leaseLost|shardEnded|lease_lost|shard_ended")
"""Names of actions, or of methods for them, that only a program for KCL 2.x or later has."""
_OLD = re.compile(r"""["']shutdown["']""")
"""The action of KCL 1.x in place of these."""


def generation_remarks(settings: Settings, file_name: str, environment: Mapping[str, str]) -> list[Remark]:
    """Return a warning if the command's program seems to speak another generation than `KEY` is set to."""
    found = guess(split_command(settings.child.command), environment)
    if found is None or found[0].value == settings.child.protocol_version:
        return []
    dialect, why = found
    name = "KCL 1.x" if dialect is Dialect.KCL_1 else "KCL 2.x and 3.x"
    message = f"is {settings.child.protocol_version}, but the record processor seems to be for {name}: {why}"
    return [Remark(Level.WARNING, KEY, file_name, message, f"set {KEY} = {dialect.value} if it is")]


def guess(command: Sequence[str], environment: Mapping[str, str]) -> tuple[Dialect, str] | None:
    """Return the generation that a command's program seems to speak, and what shows it; None if nothing does.

    The program and the scripts among its arguments are searched. A file that imports `amazon_kclpy` speaks the
    generation of the installed library. A file that has only the action `shutdown` of KCL 1.x, and none of the actions
    that replaced it, is for KCL 1.x.
    """
    for path in map(Path, (find_executable(command) or "", *command[1:])):
        source = _source(path)
        if _KCLPY.search(source):
            interpreter = find_executable(_interpreter(source) or command)
            library = next(_libraries(interpreter, environment), None)
            if library is not None:
                is_new = (library / "v3").is_dir()
                return (Dialect.KCL_2 if is_new else Dialect.KCL_1), f"it uses {library}"
        elif _OLD.search(source) and not _NEW.search(source):
            return Dialect.KCL_1, f"{path} knows shutdown, and neither shardEnded nor leaseLost"
    return None


def _source(path: Path) -> str:
    """Return the beginning of a program's text; empty if the file cannot be read or is a binary."""
    try:
        text = beginning_of(path, SOURCE_BYTES_MAX)
    except NamedFileError:
        return ""
    return "" if b"\0" in text else text.decode("utf-8", "replace")


def _interpreter(source: str) -> list[str]:
    """Return the command in the first line of a script (``#!``), without `env`."""
    words = source.partition("\n")[0].removeprefix("#!").split() if source.startswith("#!") else []
    return words[1:] if words and Path(words[0]).name == "env" else words


def _libraries(interpreter: str | None, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the directories of `amazon_kclpy` from which the interpreter would import it."""
    roots = [Path(root) for root in environment.get("PYTHONPATH", "").split(os.pathsep) if root]
    if interpreter is not None:
        prefix = Path(interpreter).parent.parent
        roots += [root for base in (prefix, prefix / "local") for root in base.glob("lib/python3*/*-packages")]
    yield from (root / "amazon_kclpy" for root in roots if (root / "amazon_kclpy").is_dir())
