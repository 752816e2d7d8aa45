"""What CI and the image take from others, each by its digest; what pip and npm install is in `test_locks`."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import ROOT
from tests.support.patience import PATIENCE_S
from tests.unit.test_deploy import dockerfile

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
ACTION = re.compile(r"[\w-]+/[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_its_commit_with_its_version_beside_it(workflow: Path) -> None:
    used = re.findall(r"uses: *(.+)", workflow.read_text())
    assert used
    for action in used:
        assert ACTION.fullmatch(action), action


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_no_later_step_finds_the_token_of_the_checkout(workflow: Path) -> None:
    read: Any = yaml.safe_load(workflow.read_text())
    checkouts = [
        step for job in read["jobs"].values() for step in job["steps"] if "actions/checkout@" in step.get("uses", "")
    ]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    assert read["permissions"] == {"contents": "read"}


def test_the_image_stands_on_a_base_by_its_digest_and_nothing_else_is_fetched_by_a_tag() -> None:
    arguments = dict(rest.split("=", 1) for word, rest in dockerfile() if word == "ARG")
    assert BY_DIGEST.fullmatch(arguments["PYTHON_IMAGE"])
    stages = {rest.partition(" AS ")[2] for word, rest in dockerfile() if word == "FROM"}
    for rest in (rest for word, rest in dockerfile() if word == "FROM"):
        assert rest.partition(" AS ")[0] in {"${PYTHON_IMAGE}", *stages}, rest
    assert "syntax=" not in (ROOT / "deploy/Dockerfile").read_text().partition("\n")[0], "a front end by its tag"


@pytest.mark.parametrize(
    ("init", "known", "accepted"),
    [(b"it", b"it", True), (b"another", b"it", False), (b"any", None, True), (None, b"it", False)],
)
def test_another_tini_than_the_one_known_ends_the_build(
    init: bytes | None, known: bytes | None, accepted: bool, tmp_path: Path
) -> None:
    """The build's own line, with a file of ours in tini's place."""
    [installs] = [rest for word, rest in dockerfile() if word == "RUN" and "tini" in rest]
    check = installs[installs.index("found=") : installs.index("esac") + len("esac")]
    if init is not None:
        (tmp_path / "tini").write_bytes(init)
    digests = "" if known is None else f"{'1' * 64} {hashlib.sha256(known).hexdigest()}"
    done = subprocess.run(
        ["/bin/sh", "-c", check.replace("/usr/bin/tini", str(tmp_path / "tini"))],
        env={"PATH": "/usr/bin:/bin", "TINI_SHA256": digests},
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode == 0) is accepted, done.stderr
