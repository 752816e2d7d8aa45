"""The boundary of a port: nothing but our own errors leaves it (`raises_only`), whatever the machine throws below.

A thread that cannot be started, a body for which there is no memory, an answer that no code of ours expected: to the
caller each is one more call whose outcome is unknown. The caller knows what to do about that; nobody knows what to do
about a `RuntimeError`. Broken invariants of our own (`AssertionError`) pass, and so do cancellations.
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
"""What passes as it is."""
_SCRUB = Scrubber()
"""For the address of a proxy, which botocore does not always hide."""


def reason_of(error: BaseException) -> str:
    """Return an exception in words, without the password of a URL and the like."""
    return f"{type(error).__name__}: {_SCRUB(str(error))}"


class Surprises:
    """Logs each kind of surprise with its trace once, which is enough to find its cause."""

    def __init__(self) -> None:
        self._told: set[tuple[str, type[BaseException]]] = set()

    def tell(self, what: str, error: BaseException) -> None:
        """Note that `error` is taken for a call without an answer."""
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
    """Make the public coroutines of a class that implements a port raise `kind` for everything that is not ours."""

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
