"""What `make release-check` judges, by small archives."""

from __future__ import annotations

import configparser
import io
import tarfile

import pytest

from mld import __version__
from tests.support.release import ROOT, ReleaseError, dated, lacking, normal, with_links, with_repository, with_url


def sdist(names: list[str], mtime: int = 7, mode: int = 0o664) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name in names:
            one = tarfile.TarInfo(f"mld_kinesis-1/{name}")
            one.size, one.mtime, one.mode = len(name), mtime, mode
            tar.addfile(one, io.BytesIO(name.encode()))
    return out.getvalue()


def test_newest_section_of_the_changelog_is_that_of_this_version() -> None:
    assert dated((ROOT / "CHANGELOG.md").read_text(), __version__)


@pytest.mark.parametrize("heading", ["## 1.0 (unreleased)", "## 1.0", "## 0.9 (2026-01-01)", "## 1.0 (2026-1-1)"])
def test_section_without_a_date_or_of_another_version_is_refused(heading: str) -> None:
    with pytest.raises(ReleaseError, match=r"write '## 1\.0"):
        dated(f"# Changes\n\n{heading}\n", "1.0")


def test_links_of_readme_become_absolute() -> None:
    readme = "[a](docs/README.md#b) [c](https://x.y/z) [d](#e) ![f](docs/f.png)"
    base = f"https://h/o/r/blob/v{__version__}"
    expected = f"[a]({base}/docs/README.md#b) [c](https://x.y/z) [d](#e) ![f]({base}/docs/f.png)"
    assert with_url(readme, "https://h/o/r/") == expected


def test_the_address_of_the_repository_is_filled_in_where_the_package_names_it() -> None:
    filled = configparser.ConfigParser()
    filled.read_string(with_links((ROOT / "setup.cfg").read_text(), "https://h/o/r"))
    links = dict(line.split(" = ") for line in filled["metadata"]["project_urls"].strip().splitlines())
    assert links["Repository"] == "https://h/o/r"
    assert links["Changes"] == f"https://h/o/r/blob/v{__version__}/CHANGELOG.md"
    assert set(links) == {"Repository", "Documentation", "Changes", "Issues"}
    package: dict[str, str] = {}
    exec(with_repository((ROOT / "mld/__init__.py").read_text(), "https://h/o/r"), package)
    assert package["page_address"]("operations") == f"https://h/o/r/blob/v{__version__}/docs/use/operations.md"  # type: ignore[operator]


def test_archives_of_other_times_and_orders_are_the_same() -> None:
    assert normal(sdist(["a", "b"]), 11, {}) == normal(sdist(["b", "a"], mtime=99, mode=0o644), 11, {})
    assert normal(sdist(["a", "b"]), 11, {}) != normal(sdist(["a"]), 11, {})


def test_link_takes_the_place_of_what_was_packed_twice() -> None:
    packed = normal(sdist(["a/x", "m/a/x", "m/ab"]), 11, {"m/a": "../a"})
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {member.name.partition("/")[2]: member.linkname for member in tar.getmembers()}
    assert found == {"a/x": "", "m/a": "../a", "m/ab": ""}


def test_sdist_that_lacks_a_file_or_has_one_too_many() -> None:
    assert list(lacking(sdist(["a", "PKG-INFO", "mld_kinesis.egg-info/x"]), {"a"})) == []
    assert list(lacking(sdist(["b"]), {"a"})) == ["lacks a", "has b"]
