"""Pages walk a newcomer through functions, named as `module:function`: each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/develop/architecture.md").read_text(encoding="utf-8")
WALK = (ROOT / "docs/develop/walkthrough.md").read_text(encoding="utf-8")
LIFE = (ROOT / "docs/develop/worker.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`((?:mld|protocol|properties|processors)[\w.]*):([\w.]+)`")
SPARK = (ROOT / "docs/develop/spark.md").read_text(encoding="utf-8")
STEP = re.compile(r"(mld(?:\.\w+)+):([\w.]+)")
WALKS = ("A record", "A lease", "A checkpoint")


@pytest.mark.parametrize(("module", "name"), sorted({*NAMED.findall(WALK), *NAMED.findall(SPARK), *STEP.findall(LIFE)}))
def test_what_it_names_is_defined_there(module: str, name: str) -> None:
    assert name in defined_in(ROOT / (module.replace(".", "/") + ".py"))


@pytest.mark.parametrize("walk", WALKS)
def test_every_step_of_a_walk_names_one(walk: str) -> None:
    section = WALK.partition(f"\n## {walk}\n")[2].partition("\n## ")[0]
    steps = [line for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(steps) >= 10
    assert [line for line in steps if len(NAMED.findall(line)) != 1] == []


def test_a_record_reaches_its_table_in_ten_steps() -> None:
    section = SPARK.partition("\n## A record, from child to table\n")[2].partition("\n## ")[0]
    steps = [NAMED.findall(line) for line in section.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [len(named) for named in steps] == 10 * [1]


def test_the_life_of_a_worker_is_one_screen() -> None:
    assert len(LIFE.splitlines()) <= 80
    assert len(STEP.findall(LIFE)) >= 20


def test_the_objects_at_run_time_are_classes() -> None:
    picture = PAGE.partition("\n## Objects at run time\n")[2].partition("\n## ")[0]
    objects = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", picture))
    classes = {name for path in (ROOT / "mld").rglob("*.py") for name in defined_in(path)}
    assert len(objects) >= 15
    assert objects - classes == set()


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")), ""))


def _names(scope: ast.Module | ast.ClassDef, prefix: str) -> list[str]:
    found = []
    for node in scope.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(prefix + node.name)
        if isinstance(node, ast.ClassDef):
            found += _names(node, f"{prefix}{node.name}.")
    return found
