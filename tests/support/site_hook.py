"""What MkDocs needs beyond docs/: navigation in the order of docs/README.md, a home page that begins with the first
screen of the repository's README, version and repository, and the files that links lead out to.

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
STYLE = "site.css"
HOME = "README.md"
FIRST_SCREEN_ENDS = "\n## "
ABOUT = re.compile(r'^(?P<name>__version__|REPOSITORY) = "(?P<value>.*)"$', re.MULTILINE)
SEARCH = 'data-md-component="search" role="dialog"'
SECTION = re.compile(r"\*\*(?P<title>.+)\*\*")
ENTRY = re.compile(r"\[(?P<title>[^\]]+)\]\((?P<target>[^()\s#]+)\)")


def on_config(config: Any) -> Any:
    """Make the sections and pages of the index the navigation, and set version and repository."""
    about = {found["name"]: found["value"] for found in ABOUT.finditer((ROOT / "mld/__init__.py").read_text("utf-8"))}
    config.site_name = f"mld {about['__version__']}"
    if about["REPOSITORY"]:
        config.repo_url, config.repo_name = about["REPOSITORY"], "Repository"
    config.extra_css.append(STYLE)
    sections: list[dict[str, list[dict[str, str]]]] = []
    for line in (ROOT / DOCS / "README.md").read_text("utf-8").splitlines():
        if section := SECTION.fullmatch(line):
            sections.append({section["title"].replace("`", ""): []})
        elif line.startswith("| ") and sections:
            (pages,) = sections[-1].values()
            first_cell = line.split(" | ")[0]
            found = ENTRY.finditer(first_cell)
            pages += [{match["title"]: _place(_resolved(f"{DOCS}/README.md", match["target"]))} for match in found]
    config.nav = [{"Home": HOME}, *sections]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what the pages link outside of docs/, and what that links."""
    files.append(File.generated(config, STYLE, abs_src_path=str(ROOT / "tests/support" / STYLE)))
    waiting = ["README.md", *(f"{DOCS}/{file.src_uri}" for file in files.documentation_pages())]
    known = {*waiting[1:], *(f"{DOCS}/{file.src_uri}" for file in files)}
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

    if here == HOME:
        return f"{_moved(first_screen(), 'README.md', here)}\n\n{_moved(_as_part(markdown), source, here)}"
    return _moved(markdown, source, here)


def on_post_page(output: str, **_: Any) -> str:
    """Name the dialog of the search, as a screen reader needs it."""
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')


def first_screen() -> str:
    """Return the beginning of the repository's README, up to its first section."""
    return (ROOT / "README.md").read_text("utf-8").split(FIRST_SCREEN_ENDS)[0]


def _as_part(index: str) -> str:
    """Return the index as a part of a page that has a title already: its title and sections one level lower."""
    return SECTION.sub(r"### \g<title>", re.sub(r"^# ", "## ", index))


def _moved(markdown: str, source: str, here: str) -> str:
    """Return the text of `source`, a path in the repository, with links that fit at the place `here` in the site."""

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
