"""English that needs no second reading, as far as a test can tell: how docstrings begin, and words that are refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mld", "protocol", "properties", "processors")
NOUNS_ALLOWED = {"property", "cached_property"}
"""Decorators of functions that are read like an attribute: their docstring may say what it is."""

VERBS = frozenset(
    """
    Accept Act Add Advance Allow Announce Answer Append Apply Ask Assign Attach Audit Await Be Begin Bound Bring Bury
    Call Cancel Carry Change Check Checkpoint Choose Claim Clear Close Collect Commit Compare Complete Compute Connect
    Consume Continue Convert Copy Count Create Cut Damage Deal Decide Declare Decode Delete Deliver Describe Discover
    Distrust Do Draw Drive Drop Elect Empty Encode End Enter Examine Exit Fail Fetch Fill Find Finish Follow Forbid
    Forget Fork Format Free Give Go Hand Handle Hash Have Hear Hide Hold Index Invert Judge Keep Kill Lay Learn Leave
    Lend Let Limit List Listen Load Lock Log Look Make Map Mark Measure Move Name Note Number Offer Open Pack Parse
    Pass Pause Perform Place Plan Position Post Prepare Print Process Promise Publish Put Queue Raise Reach Read Record
    Refuse Register Release Remark Remember Remove Rename Renew Replace Replay Reply Report Require Restore Resume
    Retire Retrieve Return Run Sample Save Say Scale See Send Serve Set Share Show Shuffle Sign Signal Skip Sleep Sort
    Spend Split Stage Stand Start Step Stop Store Strike Suspect Switch Sync Take Tell Tick Translate Treat Trust Try
    Turn Undo Update Use Wait Wake Walk Warn Watch Wire Work Write Yield
    """.split()  # noqa: SIM905 - a list of words reads better as text
)
"""First words of docstrings of functions, in the imperative. A new one is added here, if it is a verb."""

REFUSED = {
    "lookout": "failover watcher",
    "looker": "failover watcher",
    "roster": "membership",
    "candidacy": "leader candidate",
    "sibling": "group member",
    "siblings": "group members",
    "wired": "say what it does",
}
"""Words that only this code used, and the field's word."""


def modules() -> list[Path]:
    found = [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py")) if not path.is_symlink()]
    return list({path.resolve(): path for path in found}.values())


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {ast.unparse(decorator).split("(")[0].rpartition(".")[2] for decorator in node.decorator_list}
            if not names & NOUNS_ALLOWED:
                yield node


def begins_with_no_verb(source: str) -> list[str]:
    """Functions whose docstring begins with another word than a verb."""
    found = []
    for function in functions(ast.parse(source)):
        text = ast.get_docstring(function)
        first = re.match(r"[\w'-]*", text or "")
        if text and (first is None or first.group() not in VERBS):
            found.append(f"{function.name}: {text.splitlines()[0]}")
    return found


def refused_words(source: str) -> set[str]:
    """Refused words in names that the source binds or uses, and in its docstrings."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {name for node in nodes for name in _names(node)}
    words = {part for name in names for part in re.split(r"_|(?<=[a-z])(?=[A-Z])", name)}
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words |= set(re.findall(r"\w+", ast.get_docstring(node) or ""))
    return {word.lower() for word in words} & set(REFUSED)


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
            yield from name.split(".")
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name


def test_docstrings_of_functions_begin_with_a_verb_and_words_are_the_fields() -> None:
    found = {}
    for path in modules():
        source = path.read_text()
        if wrong := (*begins_with_no_verb(source), *(f"{word}: {REFUSED[word]}" for word in refused_words(source))):
            found[str(path.relative_to(ROOT))] = wrong
    assert found == {}


def test_the_checks_find_what_they_are_for() -> None:
    assert begins_with_no_verb('def f():\n    """Of the chunk."""') == ["f: Of the chunk."]
    assert begins_with_no_verb('def f():\n    """Return the bytes left in this chunk."""') == []
    assert begins_with_no_verb('class C:\n    @property\n    def f(self):\n        """The bytes left."""') == []
    assert refused_words('"""A lookout."""') == {"lookout"}
    assert refused_words("class FleetRoster: ...") == {"roster"}
    assert refused_words("x = 1") == set()
