"""How far one walks to follow a setting: the modules in which the value of `failoverTimeMillis` has a name.

The walk begins at the field that the key sets and follows names: whoever reads the field, hands it on by a keyword or
keeps it under another name, and whoever reads such a name, which may be more than there are. A period that is made of
the value is another value.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from mld.properties import keys

ROOT = Path(__file__).resolve().parents[3]
KEY = "failoverTimeMillis"
MODULES_MAX = 30


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the daemon and of its settings, parsed."""
    paths = [
        path for room in ("mld", "properties") for path in (ROOT / room).rglob("*.py") if "processors" not in path.parts
    ]
    names = {str(path.relative_to(ROOT)): path for path in paths}
    return {name: ast.parse(path.read_text()) for name, path in names.items() if not name.startswith("mld/p")}


def is_carrier(node: ast.AST, group: str, field: str, carriers: set[str]) -> bool:
    """Whether an expression is the field itself, or a name under which it was handed on."""
    match node:
        case ast.Attribute(attr=attr, value=ast.Attribute(attr=owner) | ast.Name(id=owner)) if attr == field:
            return owner.lstrip("_") == group
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in carriers
    return False


def handed_on(tree: ast.Module, group: str, field: str, carriers: set[str]) -> set[str]:
    """The names under which a module hands the value on or keeps it."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg=str(name), value=value) if is_carrier(value, group, field, carriers):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value):
                if is_carrier(value, group, field, carriers):
                    found.add(name)
    return found


@pytest.mark.full
def test_a_setting_is_followed_through_few_modules() -> None:
    group, _, field = keys.BY_NAME[KEY].sets.partition(".")
    carriers: set[str] = set()
    while more := set().union(*(handed_on(tree, group, field, carriers) for tree in modules().values())) - carriers:
        carriers |= more
    entered = sorted(
        name
        for name, tree in modules().items()
        if any(is_carrier(node, group, field, carriers) for node in ast.walk(tree))
        or any(isinstance(node, ast.Constant) and node.value == KEY for node in ast.walk(tree))
    )
    assert "properties/settings.py" in entered
    assert len(entered) <= MODULES_MAX, (sorted(carriers), entered)
