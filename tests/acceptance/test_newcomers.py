"""Who starts `mld local` and pastes what it prints needs nothing else, whatever SDK the program uses."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.acceptance.commands import CRON_PATH, MLD
from tests.support.fetch_sdks import NEWCOMERS, jars, node_packages
from tests.support.patience import PATIENCE_S
from tests.support.servers import find_node, require

pytestmark = pytest.mark.full

SHELL, LAST = "For a shell:", "Stop it with Ctrl-C."
LEFT_OVERS = {"AWS_PROFILE": "of-no-file", "AWS_SESSION_TOKEN": "of-another-day"}
"""What a shell may have in it from other work."""
DEAD_PROXY = "http://127.0.0.1:9"
"""Port 9 (discard): nobody listens."""


@pytest.fixture
def pasted(request: pytest.FixtureRequest) -> Iterator[str]:
    """The lines for a shell, of a server that runs. The parameter: what is in the environment besides."""
    environment = os.environ | getattr(request, "param", {})
    command = [str(MLD), "local", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield _lines_for_a_shell(iter(process.stdout.readline, ""))
        finally:
            process.terminate()


def _lines_for_a_shell(lines: Iterator[str]) -> str:
    said = []
    for line in lines:
        said.append(line.strip())
        if said[-1] == LAST:
            break
    begin = said.index(SHELL) + 1
    return "\n".join(said[begin : said.index("", begin)])


def records_of(program: Sequence[object], pasted: str, home: Path, more: Mapping[str, str] | None = None) -> list[str]:
    """What the program prints, run from a shell into which the lines were pasted; nothing else of AWS is set."""
    script = f"{pasted}\nexec {shlex.join(map(str, program))}\n"
    environment = {"PATH": CRON_PATH, "HOME": str(home), "LANG": "C.UTF-8", **LEFT_OVERS, **(more or {})}
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def expected() -> list[str]:
    return sorted(f"k{number} é {number} new" for number in range(20))


def java() -> list[object]:
    found = shutil.which("java")
    require(found is not None and jars().is_dir(), "the AWS SDK for Java")
    return [str(found), "-Dfile.encoding=UTF-8", "-cp", f"{jars()}/*", NEWCOMERS / "Producer.java"]


def test_of_boto3(pasted: str, tmp_path: Path) -> None:
    assert records_of([sys.executable, NEWCOMERS / "producer.py"], pasted, tmp_path) == expected()


@pytest.mark.parametrize("pasted", [{"http_proxy": DEAD_PROXY}], indirect=True)
def test_of_boto3_in_a_shell_with_a_proxy(pasted: str, tmp_path: Path) -> None:
    program = [sys.executable, NEWCOMERS / "producer.py"]
    assert records_of(program, pasted, tmp_path, {"http_proxy": DEAD_PROXY}) == expected()


@pytest.mark.node
def test_of_the_sdk_for_javascript_which_speaks_http2(pasted: str, tmp_path: Path) -> None:
    node, packages = find_node(), node_packages()
    require(node is not None and packages.is_dir(), "the AWS SDK for JavaScript")
    assert records_of([node, NEWCOMERS / "producer.cjs", packages], pasted, tmp_path) == expected()


def test_of_the_sdk_for_java_which_speaks_cbor(pasted: str, tmp_path: Path) -> None:
    assert records_of(java(), pasted, tmp_path) == expected()


def test_of_the_asynchronous_client_for_java_which_speaks_cbor_over_http2(pasted: str, tmp_path: Path) -> None:
    assert records_of([*java(), "async"], pasted, tmp_path) == expected()
