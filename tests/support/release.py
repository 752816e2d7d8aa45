"""Makes the files of a release, twice, and judges them: ``make release-check``.

    python -m tests.support.release OUT [--url URL] [--wheel]    # in .venv-release: build and twine

Built from what the newest commit holds, not from the working tree. Two builds have to be equal to the byte, the sdist
has to hold every file of the commit, the newest section of CHANGELOG.md has to be this version's, with a date, and the
wheel has to run the plain quickstart in an environment that has nothing else. `--wheel` makes the wheel alone, once,
and judges nothing: ``make wheel``.

`--url` is where the repository is published, and the only place that names it: README's links become absolute, the
metadata link to the repository, its pages, changes and issues, and `mld.REPOSITORY` is where alerts lead. Without it
the metadata have no such link, and alerts name the page in the checkout.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from email.parser import Parser
from pathlib import Path

from mld import DISTRIBUTION, __version__
from tests.support.locked import install

ROOT = Path(__file__).resolve().parents[2]
RECORDS = "2000"
BUILD_TIMEOUT_S = 600
PLACES = {"mld", f"{DISTRIBUTION.replace('-', '_')}-{__version__}"}
"""What a wheel may put at the top of site-packages; its own `.data` and `.dist-info` begin with the second."""
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|[a-z_]+\.egg-info/.*")
"""What an sdist has beside the files of the commit; setuptools writes setup.cfg anew."""
_LINK = re.compile(r"\]\((?!https?:|#)([^)]+)\)")


class ReleaseError(Exception):
    """What is wrong with the release; one sentence with the remedy."""


def _run(*command: str | Path, cwd: Path = ROOT, epoch: str = "0") -> str:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONPATH": ""}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S
    )
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def dated(changelog: str, version: str) -> str:
    """The date of this version's section, which has to be the first one."""
    heading = next(line for line in changelog.splitlines() if line.startswith("## "))
    found = re.fullmatch(rf"## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", heading)
    if found is None:
        raise ReleaseError(f"CHANGELOG.md begins with {heading!r}; write '## {version} (YYYY-MM-DD)'")
    return found[1]


def with_url(readme: str, url: str) -> str:
    """README with absolute links, as a package index needs them."""
    return _LINK.sub(lambda link: f"]({url.rstrip('/')}/blob/v{__version__}/{link[1]})", readme)


def with_links(metadata: str, url: str) -> str:
    """setup.cfg with the links that a package index shows beside the package."""
    links = {
        "Repository": url,
        "Documentation": f"{url}/blob/v{__version__}/docs/README.md",
        "Changes": f"{url}/blob/v{__version__}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }
    lines = "".join(f"    {name} = {link}\n" for name, link in links.items())
    return metadata.replace("[metadata]\n", f"[metadata]\nproject_urls =\n{lines}", 1)


def with_repository(package: str, url: str) -> str:
    """mld/__init__.py with the address of the repository."""
    return package.replace('REPOSITORY = ""\n', f'REPOSITORY = "{url}"\n', 1)


def normal(sdist: bytes, epoch: int, links: Mapping[str, str]) -> bytes:
    """The same archive with the time of the commit on every member, and with the commit's symbolic links, instead of
    which setuptools packs what they lead to once more.
    """
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        members = old.getmembers()
        top = members[0].name.partition("/")[0]
        for name, target in sorted(links.items()):
            link = tarfile.TarInfo(f"{top}/{name}")
            link.type, link.linkname, link.mtime, link.mode = tarfile.SYMTYPE, target, epoch, 0o777
            new.addfile(link)
        for member in sorted(members, key=lambda one: one.name):
            if any(f"{member.name}/".startswith(f"{top}/{name}/") for name in links):
                continue
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.type, plain.mtime = member.size, member.type, epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def _exported(into: Path, url: str) -> None:
    into.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(into, filter="data")
    if url:
        for name, named in (("README.md", with_url), ("setup.cfg", with_links), ("mld/__init__.py", with_repository)):
            (into / name).write_text(named((into / name).read_text(), url.rstrip("/")))


def _built(folder: Path, url: str, epoch: str, *kinds: str) -> dict[str, bytes]:
    _exported(folder / "src", url)
    words = ("-m", "build", "--no-isolation", *kinds, "--outdir")
    _run(sys.executable, *words, folder / "out", cwd=folder / "src", epoch=epoch)
    found = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    links = {
        str(path.relative_to(folder / "src")): str(path.readlink())
        for path in (folder / "src" / "mld").iterdir()
        if path.is_symlink()
    }
    return {name: normal(data, int(epoch), links) if name.endswith(".tar.gz") else data for name, data in found.items()}


def lacking(sdist: bytes, committed: set[str]) -> Iterator[str]:
    """What an sdist lacks of the commit, or has beside it."""
    with tarfile.open(fileobj=io.BytesIO(sdist)) as tar:
        held = {member.name.partition("/")[2] for member in tar.getmembers() if not member.isdir()}
    yield from (f"lacks {name}" for name in sorted(committed - held))
    yield from (f"has {name}" for name in sorted(held - committed) if not GENERATED.fullmatch(name))


def _judge(files: dict[str, bytes]) -> None:
    committed = set(_run("git", "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    (sdist,) = (data for name, data in files.items() if name.endswith(".tar.gz"))
    if faults := list(lacking(sdist, committed)):
        raise ReleaseError(f"the sdist {', '.join(faults)}; correct MANIFEST.in")
    (wheel,) = (data for name, data in files.items() if name.endswith(".whl"))
    with zipfile.ZipFile(io.BytesIO(wheel)) as packed:
        tops = {name.partition("/")[0] for name in packed.namelist()}
        (metadata,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(packed.read(metadata).decode())
    if strange := {top for top in tops if not any(top == place or top.startswith(f"{place}.") for place in PLACES)}:
        raise ReleaseError(f"the wheel puts {', '.join(sorted(strange))} at the top of site-packages")
    if fields["License-Expression"] != "Apache-2.0":
        raise ReleaseError("the metadata have no SPDX expression for the license")


def _tried(wheel: Path, folder: Path) -> None:
    """Install the wheel over the oldest packages that it allows, and run the plain quickstart from it."""
    python = folder / "venv" / "bin" / "python"
    install(folder / "venv", "lowest")
    _run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", wheel)
    said = _run(folder / "venv" / "bin" / "mld", "--version", cwd=folder)
    if said != f"mld {__version__}\n":
        raise ReleaseError(f"the installed command says {said!r}")
    _run(python.with_name("mld"), "quickstart", "--plain", "--records", RECORDS, cwd=folder)


def _wheel_alone(out: Path, url: str, epoch: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        ((wheel, data),) = _built(Path(name), url, epoch, "--wheel").items()
    out.mkdir(parents=True, exist_ok=True)
    (out / wheel).write_bytes(data)
    if _run("git", "status", "--porcelain", "--untracked-files=no"):
        print("Made from the newest commit, without what you have changed since.", file=sys.stderr)
    print(f"pip install '{out / wheel}'\npip install '{out / wheel}[metrics]'    # with an extra of setup.cfg")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.release", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--url", default="", help="where the repository is published")
    parser.add_argument("--wheel", action="store_true", help="only make the wheel, and say how to install it")
    options = parser.parse_args()
    try:
        epoch = _run("git", "log", "-1", "--format=%ct").strip()
        if options.wheel:
            return _wheel_alone(options.out, options.url, epoch)
        date = dated((ROOT / "CHANGELOG.md").read_text(), __version__)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            builds = []
            for which in ("first", "second"):
                (folder / which).mkdir()
                builds.append(_built(folder / which, options.url, epoch))
            if builds[0] != builds[1]:
                differing = [one for one in builds[0] if builds[0][one] != builds[1].get(one)]
                raise ReleaseError(f"two builds of one commit differ: {', '.join(differing)}")
            _judge(builds[0])
            options.out.mkdir(parents=True, exist_ok=True)
            for one, data in builds[0].items():
                (options.out / one).write_bytes(data)
            print(_run(sys.executable, "-m", "twine", "check", "--strict", *map(options.out.joinpath, builds[0])))
            _tried(next(options.out.absolute().glob("*.whl")), folder)
    except (ReleaseError, OSError, subprocess.SubprocessError) as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    for one, data in sorted(builds[0].items()):
        print(f"{hashlib.sha256(data).hexdigest()}  {options.out / one}")
    if _run("git", "tag", "--points-at", "HEAD").strip() != f"v{__version__}":
        print(f"{__version__} of {date} is ready; tag it: git tag -s v{__version__} -m 'mld {__version__}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
