"""An event loop whose time jumps to the next timer whenever nothing is ready, so that hours pass in milliseconds.

It has no sockets, threads or children: a test that would wait for the outside world fails with `DeadlockError`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DeadlockError(AssertionError):
    """Nothing is ready, no timer is set: the code under test would wait for ever."""


class JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for the next timer, it moves the time there."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError("no timer is set and nothing is ready")
        self.jumped_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and only moves when every task is waiting."""

    def __init__(self, selector: JumpingSelector | None = None) -> None:
        self._jumping = selector or JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jumping.jumped_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test that runs in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run


def asked_of_pytest(test: Callable[..., Any], run: Callable[..., None], *given: str) -> Callable[..., None]:
    """`run` in place of `test`, without the arguments that `run` gives it itself."""
    functools.update_wrapper(run, test)
    parameters = [one for one in inspect.signature(test).parameters.values() if one.name not in given]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
