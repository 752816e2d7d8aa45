"""Packages that come with an extra of the distribution only, looked for without importing them."""

from __future__ import annotations

from importlib.util import find_spec

from mld import pip_install
from mld.core.errors import MldError


class NotReadyError(MldError):
    """This machine lacks something that the command needs; the text has the remedy."""


def is_installed(module: str) -> bool:
    """Return whether a module can be found; its parents are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def require(extra: str, what: str, *modules: str) -> None:
    """Raise NotReadyError if one of the modules of an extra is not installed; `what` needs them."""
    if missing := ", ".join(module for module in modules if not is_installed(module)):
        raise NotReadyError(f"{what} needs packages that are not installed ({missing}): {pip_install(extra)}")
