"""Record processors on libraries of others, Amazon's above all, unmodified: the commands that start them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from tests.support import fetch_kclpy
from tests.support.fetch_kclrb import ruby_command
from tests.support.fetch_sdks import node_packages, rust_child
from tests.support.servers import find_node, require

CHILDREN = Path(__file__).resolve().parents[1] / "conformance" / "children"
PYTHONS = ("v1", "v2", "v3")
OTHERS = ("node", "ruby", "rust")
KEYLESS = {"rust"}
"""Their records have no names of streams and schemas."""
PANICKING = {"rust"}
"""They end with status 101 when their input ends."""


def command_of(kind: str) -> list[str] | None:
    """None for Ruby where it is not installed; skips the test, or fails it, where another one is not."""
    if kind == "ruby":
        ruby = ruby_command()
        return None if ruby is None else [*ruby, str(CHILDREN / "unchanged.rb")]
    if kind == "node":
        node, packages = find_node(), node_packages()
        require(node is not None and (packages / "node_modules" / "aws-kcl").is_dir(), "aws-kcl for Node.js")
        return [str(node), str(CHILDREN / "unchanged.js"), str(packages)]
    if kind == "rust":
        child = rust_child()
        require(child.is_file(), "the child on the crate kcl of Rust")
        return [str(child)]
    kclpy = fetch_kclpy.installed()
    require(kclpy is not None, "amazon_kclpy")
    return ["env", f"PYTHONPATH={kclpy}", sys.executable, str(CHILDREN / "unchanged.py"), kind]


def executable_names() -> dict[str, str]:
    """What a properties file has for each kind that is installed."""
    commands = {kind: command_of(kind) for kind in (*PYTHONS, *OTHERS)}
    return {kind: shlex.join(command) for kind, command in commands.items() if command is not None}
