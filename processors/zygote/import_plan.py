"""Decides which imports of a script can be made before it runs, with the same result.

It follows the statements at module level, up to the first that starts the script's work or may change what a later
import does: a call, an assignment to an attribute or an item (``os.environ[...]``, ``sys.path``), a loop,
``if __name__ == "__main__"``. Imports in the branches of an `if` are left out, as its condition is not known. The
script itself makes all imports that are left out, once per child, so leaving one out is always correct.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

_MAY_RUN_CODE = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
Step: TypeAlias = "Import | Attempt"


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement, as source text."""

    text: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A ``try`` statement: if an import of `body` fails, the script continues with `fallback`, the only handler. None
    means that it is not known how the script continues.
    """

    body: tuple[Step, ...]
    fallback: tuple[Step, ...] | None


def plan(tree: ast.Module) -> tuple[Step, ...]:
    """Return the imports to make, in order."""
    return _follow(tree.body)[0]


def _follow(statements: Sequence[ast.stmt]) -> tuple[tuple[Step, ...], bool]:
    """Return the imports of a block, and whether the block was followed to its end."""
    steps: list[Step] = []
    for statement in statements:
        found, goes_on = _statement(statement)
        steps += found
        if not goes_on:
            return tuple(steps), False
    return tuple(steps), True


def _statement(statement: ast.stmt) -> tuple[tuple[Step, ...], bool]:
    """Return the imports of a statement, and whether to go on after it."""
    match statement:
        case ast.ImportFrom(module="__future__"):
            return (), True
        case ast.Import() | ast.ImportFrom():
            return (Import(ast.unparse(statement)),), True
        case ast.Try() | ast.TryStar():
            return _try(statement)
        case ast.If():
            return _if(statement)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return (), True
        case ast.Expr(value=ast.Constant()):
            return (), True
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return (), _only_names(statement)
    return (), False


def _try(statement: ast.Try | ast.TryStar) -> tuple[tuple[Step, ...], bool]:
    """Return the imports of a `try` statement, and whether to go on after it."""
    body, goes_on = _follow([*statement.body, *statement.orelse])
    if not goes_on:
        return body, False
    handlers = [_follow(handler.body) for handler in statement.handlers]
    fallback = handlers[0][0] if len(handlers) == 1 and handlers[0][1] else None
    last, goes_on = _follow(statement.finalbody)
    return (Attempt(body, fallback), *last), goes_on


def _if(statement: ast.If) -> tuple[tuple[Step, ...], bool]:
    """Return the imports of an `if` statement, and whether to go on after it."""
    if _is_type_checking(statement.test):
        return _follow(statement.orelse)
    if any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)):
        return (), False
    harmless = _follow(statement.body)[1] and _follow(statement.orelse)[1]
    return (), harmless and not _runs_code(statement.test)


def _is_type_checking(test: ast.expr) -> bool:
    """Return whether a condition is false at run time: TYPE_CHECKING or False."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING") | ast.Constant(value=False):
            return True
    return False


def _only_names(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
    """Return whether the assignment only binds names of the script, and its expression calls nothing."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    leaves = [leaf for target in targets for leaf in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return all(isinstance(leaf, ast.Name) for leaf in leaves) and not (
        statement.value is not None and _runs_code(statement.value)
    )


def _runs_code(expression: ast.expr) -> bool:
    return any(isinstance(node, _MAY_RUN_CODE) for node in ast.walk(expression))
