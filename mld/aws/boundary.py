"""`raises_only`: the public methods of a port raise only our own errors, whatever goes wrong below.

A thread that cannot be started, a body for which there is no memory, an answer that our code did not expect: for the
caller each is a call whose outcome is unknown. Callers can deal with that, but not with a `RuntimeError`. Broken
invariants of our own (`AssertionError`) pass, and so do cancellations.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mld.core.errors import MldError
from mld.properties.scrubber import Scrubber

log = logging.getLogger(__name__)
PortT = TypeVar("PortT")
OUR_OWN = (MldError, AssertionError)
"""Errors that pass unchanged."""
_SCRUB = Scrubber()
"""Hides the credentials in the address of a proxy, which botocore does not always do."""


def reason_of(error: BaseException) -> str:
    """Return an exception in words, without the password of a URL and the like."""
    return f"{type(error).__name__}: {_SCRUB(str(error))}"


class Surprises:
    """Logs each kind of unexpected error once, with its traceback."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[BaseException]]] = set()

    def tell(self, what: str, error: BaseException) -> None:
        """Log that `error` counts as a call without an answer."""
        if (what, type(error)) in self._told:
            return
        self._told.add((what, type(error)))
        log.error(
            "%s: %s; taken for a call without an answer",
            what,
            reason_of(error),
            exc_info=error,
            extra={"action": "unexpected_error"},
        )


def raises_only(kind: Callable[[str], MldError]) -> Callable[[type[PortT]], type[PortT]]:
    """Make the public coroutines of a class that implements a port raise `kind` for every error that is not ours."""

    surprises = Surprises()

    def guard(port: type[PortT]) -> type[PortT]:
        for name, method in list(vars(port).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(port, name, _guarded(f"{port.__name__}.{name}", method, kind, surprises))
        return port

    return guard


def _guarded(
    what: str, method: Callable[..., Awaitable[Any]], kind: Callable[[str], MldError], surprises: Surprises
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(method)
    async def guarded(*args: Any, **options: Any) -> Any:
        try:
            return await method(*args, **options)
        except OUR_OWN:
            raise
        except Exception as error:
            surprises.tell(what, error)
            raise kind(f"{what}: {reason_of(error)}") from error

    return guarded
