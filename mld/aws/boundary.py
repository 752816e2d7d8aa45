"""`raises_only`: makes the public methods of a port raise only errors of mld, whatever goes wrong inside.

Examples are a thread that cannot be started, a body that does not fit into memory, or an answer that our code did not
expect. For the caller, each of them means that the outcome of the call is unknown. Callers can handle an error that
says so, but not a `RuntimeError`. Broken invariants of our own (`AssertionError`) pass unchanged, and so do
cancellations.
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
"""Hides the user name and password in the URL of a proxy, which botocore does not always hide."""


def reason_of(error: BaseException) -> str:
    """Return the type and the text of an exception, without secrets such as the password in a URL."""
    return f"{type(error).__name__}: {_SCRUB(str(error))}"


class Surprises:
    """Logs each kind of unexpected error once, with its traceback."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, type[BaseException]]] = set()

    def report(self, what: str, error: BaseException) -> None:
        """Log that a call that raised `error` is treated as a call without an answer; `what` names the call."""
        if (what, type(error)) in self._reported:
            return
        self._reported.add((what, type(error)))
        log.error(
            "%s: %s; taken for a call without an answer",
            what,
            reason_of(error),
            exc_info=error,
            extra={"action": "unexpected_error"},
        )


def raises_only(kind: Callable[[str], MldError]) -> Callable[[type[PortT]], type[PortT]]:
    """Return a decorator for a class that implements a port: its public coroutines raise only `OUR_OWN` errors. In
    place of any other error they raise what `kind` makes from a text, and each kind of such an error is logged once.
    """

    surprises = Surprises()

    def guard(port: type[PortT]) -> type[PortT]:
        """Replace each public coroutine method of a port by a guarded one."""
        for name, method in list(vars(port).items()):
            if not name.startswith("_") and inspect.iscoroutinefunction(method):
                setattr(port, name, _guarded(f"{port.__name__}.{name}", method, kind, surprises))
        return port

    return guard


def _guarded(
    what: str, method: Callable[..., Awaitable[Any]], kind: Callable[[str], MldError], surprises: Surprises
) -> Callable[..., Awaitable[Any]]:
    """Return `method`, wrapped so that it raises `kind` for errors other than `OUR_OWN`. Such an error is also reported
    as a surprise; `what` names the method in both.
    """

    @functools.wraps(method)
    async def guarded(*args: Any, **options: Any) -> Any:
        """Call the method. Translate every error that is not one of ours, and report it as a surprise."""
        try:
            return await method(*args, **options)
        except OUR_OWN:
            raise
        except Exception as error:
            surprises.report(what, error)
            raise kind(f"{what}: {reason_of(error)}") from error

    return guarded
