"""Finds what a feature needs on this machine: packages of extras, without importing them, and programs of commands."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mld import pip_install
from mld.core.errors import MldError


class NotReadyError(MldError):
    """This machine lacks a package or a program that the command needs; the text has the remedy."""


def is_installed(module: str) -> bool:
    """Return whether a module can be found. Its parent packages are imported, the module itself is not."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(extra: str, what: str, *modules: str) -> None:
    """Raise NotReadyError if a module of an extra is missing. `what` names the feature that needs the modules."""
    if missing := ", ".join(module for module in modules if not is_installed(module)):
        raise NotReadyError(f"{what} needs packages that are not installed ({missing}): {pip_install(extra)}")


def find_executable(command: Sequence[str]) -> str | None:
    """Return the path of the program that `command` would run; None if no such program is found.

    A name with a slash is used as it is. A bare name is looked up in PATH, and then in the directory of our
    interpreter, where `mld-spark` and `mld-zygote` are installed.
    """
    if not command or not command[0]:
        return None
    return shutil.which(command[0]) or (
        None if "/" in command[0] else shutil.which(command[0], path=str(Path(sys.executable).parent))
    )


def runnable(command: Sequence[str]) -> list[str]:
    """Return a command that `exec` can find. If its program is only in our interpreter's directory, it gets the full
    path; otherwise the command is unchanged.
    """
    found = None if command and shutil.which(command[0]) else find_executable(command)
    return list(command) if found is None else [found, *command[1:]]
