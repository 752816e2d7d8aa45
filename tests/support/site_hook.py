"""What MkDocs needs beyond docs/: navigation in the order of docs/README.md, and the files that links lead out to.

Such a file stands below `repository/` in the site: Markdown as a page, a directory as the list of its files, all else
as it is.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
OUTSIDE = "repository"
LINK = re.compile(r"\]\((?P<target>[^()\s#:]+)(?P<anchor>#[^()\s]*)?\)")
SECTION = re.compile(r"\*\*(?P<title>.+)\*\*")
ENTRY = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<target>[^()\s#]+)\)")


def on_config(config: Any) -> Any:
    """Make the sections and pages of the index the navigation."""
    sections: list[dict[str, list[dict[str, str]]]] = []
    for line in (ROOT / DOCS / "README.md").read_text("utf-8").splitlines():
        if section := SECTION.fullmatch(line):
            sections.append({section["title"].replace("`", ""): []})
        elif line.startswith("| ") and sections:
            (pages,) = sections[-1].values()
            first_cell = line.split(" | ")[0]
            found = ENTRY.finditer(first_cell)
            pages += [{match["title"]: _place(_resolved(f"{DOCS}/README.md", match["target"]))} for match in found]
    config.nav = [{"Index": "README.md"}, *sections]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what the pages link outside of docs/, and what that links."""
    waiting = [f"{DOCS}/{file.src_uri}" for file in files.documentation_pages()]
    known = {*waiting, *(f"{DOCS}/{file.src_uri}" for file in files)}
    while waiting:
        page = waiting.pop()
        for target in _targets(page) - known:
            known.add(target)
            path = ROOT / target
            source = {"content": _listing(target)} if path.is_dir() else {"abs_src_path": str(path)}
            files.append(File.generated(config, _place(target), **source, inclusion=InclusionLevel.NOT_IN_NAV))
            waiting += [target] if target.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their files stand in the site."""
    here = page.file.src_uri
    source = here.removeprefix(f"{OUTSIDE}/") if here.startswith(f"{OUTSIDE}/") else f"{DOCS}/{here}"
    if (ROOT / source.removesuffix("/index.md")).is_dir():
        return markdown

    def moved(match: re.Match[str]) -> str:
        target = _place(_resolved(source, match["target"]))
        return f"]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{match['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def _targets(page: str) -> set[str]:
    text = (ROOT / page).read_text("utf-8")
    found = {_resolved(page, match["target"]) for match in LINK.finditer(text)}
    return {target for target in found if (ROOT / target).exists()}


def _resolved(page: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _place(path: str) -> str:
    """Return where a file of the repository stands in the site."""
    if path.startswith(f"{DOCS}/") and not (ROOT / path).is_dir():
        return path.removeprefix(f"{DOCS}/")
    return f"{OUTSIDE}/{path}/index.md" if (ROOT / path).is_dir() else f"{OUTSIDE}/{path}"


def _listing(path: str) -> str:
    names = sorted(one.name for one in (ROOT / path).iterdir() if one.is_file())
    return f"# {path}\n\n" + "\n".join(f"* `{name}`" for name in names) + "\n"
