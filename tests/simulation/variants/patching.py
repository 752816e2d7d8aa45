"""Runs the daemon with a few lines of its source changed: text patches, installed for the length of a `with` block.

A patch names a module, the lines as they are and the lines instead. The lines must be there exactly once, so that a
variant whose target has changed fails loudly instead of testing nothing. The patched source is compiled, and every
function whose code differs gets the new code in place: whoever holds a reference to the function runs it, too.
"""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Patch:
    """`old` -> `new` in the source of `module`, inside a function."""

    module: str
    old: str
    new: str


class PatchError(AssertionError):
    """The patch does not fit the source any more."""


@contextmanager
def patched(patches: tuple[Patch, ...]) -> Iterator[None]:
    """Install all patches; restore the code at the end, whatever happens."""
    changes: list[tuple[types.FunctionType, types.CodeType]] = []
    try:
        for module in dict.fromkeys(patch.module for patch in patches):
            for function, code in _changes(module, [patch for patch in patches if patch.module == module]):
                changes.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in reversed(changes):
            function.__code__ = code


def _changes(name: str, patches: list[Patch]) -> list[tuple[types.FunctionType, types.CodeType]]:
    """The functions of one module that all its patches together change, and their new code."""
    module = importlib.import_module(name)
    path = inspect.getsourcefile(module)
    assert path is not None
    source = changed_source = Path(path).read_text()
    for patch in patches:
        if (count := changed_source.count(patch.old)) != 1:
            raise PatchError(f"{name}: the lines to change are there {count} times instead of once:\n{patch.old}")
        changed_source = changed_source.replace(patch.old, patch.new)
    before = _functions(compile(source, path, "exec", dont_inherit=True))
    after = _functions(compile(changed_source, path, "exec", dont_inherit=True))
    changed = [
        name for name, code in after.items() if name not in before or _substance(code) != _substance(before[name])
    ]
    if not changed:
        raise PatchError(f"{name}: the patches change no function")
    return [(_live(module, name), after[name]) for name in changed]


def _functions(code: types.CodeType, prefix: str = "") -> dict[str, types.CodeType]:
    """Functions and methods by qualified name; what is inside a function belongs to it."""
    found: dict[str, types.CodeType] = {}
    for inner in code.co_consts:
        if not isinstance(inner, types.CodeType):
            continue
        name = prefix + inner.co_name
        if inner.co_flags & inspect.CO_OPTIMIZED:
            found[name] = inner
        else:  # the body of a class
            found.update(_functions(inner, name + "."))
    return found


def _substance(code: types.CodeType) -> tuple[Any, ...]:
    """All but line numbers."""
    consts = tuple(_substance(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts)
    return (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, consts)


def _live(module: types.ModuleType, name: str) -> types.FunctionType:
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found)  # the boundary of a port is around its methods
    if not isinstance(found, types.FunctionType):
        raise PatchError(f"{module.__name__}.{name} is no function that could be changed")
    return found
