"""Gives a fork the descriptors, process group, environment and signals of a plain child, and runs the script in it.

A plain child is a Python process that was started for the script alone, without the server. The script runs from its
first line as `__main__`, but its code and its imports are loaded already. An error shows the same traceback as in a
plain child, and the interpreter ends as usual.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import ast
import builtins
import contextlib
import fcntl
import gc
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from typing import Any

from mld.processors.zygote.import_plan import Attempt, Import, Step, plan
from mld.protocol.fork_requests import Request

LIFELINE_FD_MIN = 100  # for the child's connection to the stub; a program may expect to get the lowest numbers itself
SERVER_FD_MIN = 200  # all descriptors of the server are from here on, so that a child can close them with one call
SERVER_FD_MAX = 65_536


class ScriptError(Exception):
    """The script cannot be read or compiled. The plain child that is started instead reports the reason."""


class Script:
    """A compiled script or module, and the `__main__` in which it will run."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = list(arguments)
        if arguments[0] == "-m":
            self._load_module(list(arguments[1:]))
        else:
            self._load_file(list(arguments))

    def _load_file(self, arguments: list[str]) -> None:
        """Read and prepare a script that was named by its path."""
        if not sys.flags.safe_path:
            sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))  # noqa: PTH120
        try:
            with open(arguments[0], "rb") as file:  # noqa: PTH123
                source = file.read()
        except OSError as error:
            raise ScriptError from error
        file_path = os.path.abspath(arguments[0])  # noqa: PTH100
        self._prepare(source, file_path, None, SourceFileLoader("__main__", file_path), None)
        sys.argv = arguments

    def _load_module(self, arguments: list[str]) -> None:
        """Find, read and prepare a module that was named by ``-m``, as Python's runpy does."""
        if not sys.flags.safe_path:
            sys.path.insert(0, os.getcwd())  # noqa: PTH109
        try:
            spec = importlib.util.find_spec(arguments[0])
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{arguments[0]}.__main__")
            assert spec is not None and spec.origin is not None
            with open(spec.origin, "rb") as file:  # noqa: PTH123
                source = file.read()
        except Exception as error:
            raise ScriptError from error
        self._prepare(source, spec.origin, spec, spec.loader, spec.parent)
        sys.argv = [spec.origin, *arguments[1:]]

    def _prepare(self, source: bytes, file: str, spec: ModuleSpec | None, loader: object, package: str | None) -> None:
        """Prepare to run: compile the source, plan its imports, make a new module `__main__`. Raises ScriptError."""
        try:
            tree = ast.parse(source, file)
            self._code = compile(source, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ScriptError from error
        self.file = file
        self._plan = plan(tree)
        module = types.ModuleType("__main__")
        sys.orig_argv = [sys.executable, *self.arguments]
        cached = spec.cached if spec is not None else None
        names = {"file": file, "spec": spec, "loader": loader, "package": package, "cached": cached}
        module.__dict__.update({f"__{name}__": value for name, value in names.items()}, __builtins__=builtins)
        self._main = sys.modules["__main__"] = module

    def preimport(self) -> None:
        """Make the planned imports, before the first fork. An import that fails here fails again in the child, which
        reports it."""
        namespace: dict[str, Any] = {"__name__": "__main__", "__package__": self._main.__package__}
        with contextlib.suppress(Exception, SystemExit):
            _carry_out(self._plan, namespace)

    def run(self) -> None:
        """Run the script. Let SystemExit pass; after any other exception end as the interpreter would."""
        try:
            exec(self._code, self._main.__dict__)  # noqa: S102
        except SystemExit:
            raise
        except BaseException as error:
            traceback = error.__traceback__
            assert traceback is not None
            # `tb_next` leaves out the frame of this function, which a plain child does not have.
            sys.excepthook(type(error), error.with_traceback(traceback.tb_next), traceback.tb_next)
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                _flush()
                os.kill(os.getpid(), signal.SIGINT)
            sys.exit(1)


def _carry_out(steps: Sequence[Step], namespace: dict[str, Any]) -> None:
    """Make the planned imports in `namespace`."""
    for step in steps:
        match step:
            case Import(text):
                exec(text, namespace)  # noqa: S102
            case Attempt(body, fallback):
                try:
                    _carry_out(body, namespace)
                except Exception:
                    if fallback is None:
                        raise
                    _carry_out(fallback, namespace)


def become(request: Request, group: int, descriptors: Sequence[int], line: int, handlers: Mapping[int, Any]) -> int:
    """Give this fork everything that a plain child has, then send its process id to the stub. Return the descriptor of
    the connection to the stub.

    `descriptors` are the stub's standard streams, `line` is the connection, `group` is as for `setpgid`. `handlers` are
    the handlers of the signals that the server ignores. Raises OSError if the stub is gone. Each Python function that
    runs here costs every child some pages of memory, because reference counts change, so this calls the interpreter's
    own functions where possible."""
    os.setpgid(0, group)
    os.dup2(descriptors[0], 0)
    os.dup2(descriptors[1], 1)
    os.dup2(descriptors[2], 2)
    kept = fcntl.fcntl(line, fcntl.F_DUPFD_CLOEXEC, LIFELINE_FD_MIN)
    os.closerange(SERVER_FD_MIN, SERVER_FD_MAX)
    for number, handler in handlers.items():
        _signal.signal(number, handler)
    for name, value in request.variables:
        os.putenv(name, value)
        os.environ._data[name] = value  # type: ignore[attr-defined]  # as os.environb does, without its checks
    if os.isatty(1):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if "numpy.random" in sys.modules:  # the module `random` seeds itself after a fork
        sys.modules["numpy.random"].seed()
    gc.enable()
    os.write(kept, b"%-15s\n" % (b"pid %d" % os.getpid()))  # as `fork_requests.encode_record` makes it
    return kept


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
