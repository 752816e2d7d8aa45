"""What the code cites is in the repository: `page#anchor` is a heading of docs/develop/rules, and docs name real files.

A page's anchors are those that GitHub makes of its headings. Messages name file, line and citation, one a line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "develop" / "rules"
INDEX = ROOT / "docs" / "README.md"
README_LINKS_MAX = 20
PAGES = ("leases", "shards", "coordination", "retrieval", "protocol", "configuration", "metrics", "parallel")
TEXT_ROOMS = ("mld", "protocol", "properties", "processors", "tests", "docs", "bin")
TEXT_SUFFIXES = {".py", ".md", ".txt", ".toml", ".json", ".properties", ".sh", ".xml", ""}

PAGE = "|".join(PAGES)
CITATION = re.compile(rf"(?<![\w./#-])(?P<page>{PAGE})#(?P<anchor>[a-z0-9][a-z0-9-]*)")
LINK = re.compile(r"\]\((?P<target>[^()\s]*)\)")
MODULE_PATH = re.compile(r"`(?P<path>(?:mld|protocol|properties|processors|tests)/[\w/.-]*\.py)`")
KEPT_BY = re.compile(
    r"`(?P<path>(?:mld|protocol|properties|processors|tests)/[\w/.-]*\.py)`\s+\((?P<names>`[\w.]+`(?:,\s+`[\w.]+`)*)\)"
)
ACTION_ROW = re.compile(r"\| (?P<actions>`[a-z_]+`(?:, (?:then )?`[a-z_]+`)*) \|")
PAGE_PATH = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|service|conf|svg)\b")
HEADING = re.compile(r"(?P<level>#{1,6}) +(?P<text>.*?)[ #]*")
FENCE = re.compile(r"\s*(```|~~~)")
RULE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 -]*")
# Forms of citations of documents that are not in this repository. The second to fourth may stand at a line's end.
OLD_FORMS = (
    re.compile(rf"\b(?:{PAGE}|shard-sync|multilang)\s+spec\b", re.IGNORECASE),
    re.compile(r"\bspec\s*,\s*(?:section\s+)?[0-9]+(?:\.[0-9]+)*", re.IGNORECASE),
    re.compile(rf"\bspec/(?:{PAGE})"),
    re.compile(r"\bfield\s+report\b", re.IGNORECASE),
    re.compile(r"\b(?:backends|design)\.md\b"),
    re.compile(r"\bshared/"),
    re.compile(r"\bsection\s+[0-9]+(?:\.[0-9]+)*", re.IGNORECASE),
)
# A section's number without the name of a document, in comments, docstrings and stories. Versions begin with 1 to 3.
BARE_NUMBERS = (
    re.compile(r"(?<![\w.])\([0-9]{1,2}\.[0-9]{1,2}(?=[,;) ]| to )[^()]*\)"),
    re.compile(
        r"\b(?:with|of|and|improvements?|see)\s+(?:1[0-9]|[4-9])\.[0-9]{1,2}\b"
        r"(?!\s?(?:s|ms|%|x|[KMG]i?B|seconds|percent|times)\b)"
    ),
)
WORD_BREAK = re.compile(r"\s*\n\s*(?:#+ ?)?")
"""A sentence goes on in the next line of a comment or a docstring."""


@cache
def texts() -> dict[Path, str]:
    """Every text of ours but this one, which has to name what it looks for."""
    files = sorted(ROOT.glob("*.md"))
    files += [path for room in TEXT_ROOMS for path in sorted((ROOT / room).rglob("*"))]
    return {
        path: text
        for path in files
        if path.is_file() and path.suffix in TEXT_SUFFIXES and path != Path(__file__).resolve()
        if (text := _read(path)) is not None
    }


def _read(path: Path) -> str | None:
    if any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(ROOT).parts):
        return None
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def docs() -> dict[Path, str]:
    return {path: text for path, text in texts().items() if path.suffix == ".md"}


def rules() -> dict[Path, str]:
    return {path: text for path, text in docs().items() if path.parent == RULES}


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a Markdown page outside of code blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Line, level and text of each heading."""
    for number, line in prose(text):
        match = HEADING.fullmatch(line)
        if match:
            yield number, len(match["level"]), match["text"]


def slug(heading: str) -> str:
    """GitHub's anchor of a heading that is the first of its name on its page."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    counts: Counter[str] = Counter()
    found = set()
    for _, _, heading in headings(path.read_text(encoding="utf-8")):
        name = slug(heading)
        found.add(name if not counts[name] else f"{name}-{counts[name]}")
        counts[name] += 1
    return frozenset(found)


def at(path: Path, line: int, what: str) -> str:
    return f"{path.relative_to(ROOT)}:{line}: {what}"


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def none_of(problems: Iterable[str]) -> None:
    """Fails with one problem a line."""
    found = list(problems)
    if found:
        pytest.fail(f"{len(found)} found:\n" + "\n".join(found), pytrace=False)


def test_there_is_a_page_for_each_name_and_a_name_for_each_page():
    assert {path.stem for path in RULES.glob("*.md")} - {"README"} == set(PAGES)


def test_every_citation_is_a_heading():
    none_of(
        at(path, line_of(text, match.start()), match[0])
        for path, text in texts().items()
        for match in CITATION.finditer(text)
        if not _resolves(RULES / f"{match['page']}.md", match["anchor"])
    )


def test_every_link_of_the_docs_leads_somewhere():
    none_of(
        at(path, number, match["target"])
        for path, text in docs().items()
        for number, line in prose(text)
        for match in LINK.finditer(line)
        if "://" not in match["target"]
        if not _resolves(_target(path, match["target"]), match["target"].partition("#")[2])
    )


def test_every_page_opens_with_whom_it_is_for():
    none_of(
        at(path, 1, opening or "empty")
        for path, text in docs().items()
        if path.is_relative_to(ROOT / "docs")
        if not (opening := _opening(text)).startswith("For ")
    )


def _opening(text: str) -> str:
    """The first line of prose under the title."""
    title, *rest = (line for _, line in prose(text) if line.strip() and not line.startswith("<!--"))
    return rest[0] if title.startswith("# ") and rest else ""


def test_the_index_links_every_page_and_the_readme_few():
    pages = {path for path in docs() if path.is_relative_to(ROOT / "docs")}
    missing = sorted(pages - {INDEX} - _linked(INDEX))
    none_of(at(INDEX, 1, f"does not link {page.relative_to(ROOT)}") for page in missing)
    assert INDEX in _linked(ROOT / "README.md")
    assert len(LINK.findall((ROOT / "README.md").read_text("utf-8"))) <= README_LINKS_MAX


def _linked(page: Path) -> set[Path]:
    return {_target(page, match["target"]) for match in LINK.finditer(page.read_text("utf-8"))}


def _target(page: Path, target: str) -> Path:
    name = target.partition("#")[0]
    return (page.parent / name).resolve() if name else page


def _resolves(path: Path, anchor: str) -> bool:
    if not path.exists():
        return False
    return not anchor or path.suffix != ".md" or anchor in anchors(path)


def test_nothing_cites_what_is_not_in_the_repository():
    none_of(sorted({found for path, text in texts().items() for found in _old_citations(path, text)}))


def _old_citations(path: Path, text: str) -> Iterator[str]:
    """Also those that a line break cuts in two."""
    joined = WORD_BREAK.sub(lambda gap: " " * len(gap[0]), text)  # of equal length: positions are those of the text
    for form in OLD_FORMS:
        for match in form.finditer(joined):
            yield at(path, line_of(text, match.start()), " ".join(match[0].split()))


def test_no_number_stands_for_a_section():
    none_of(
        at(path, line + line_of(prose_text, match.start()) - 1, " ".join(match[0].split()))
        for path, text in texts().items()
        if path.suffix in (".py", ".txt") and any(form.search(text) for form in BARE_NUMBERS)
        for line, prose_text in (comments_and_docstrings(text) if path.suffix == ".py" else [(1, text)])
        for form in BARE_NUMBERS
        for match in form.finditer(prose_text)
    )


def comments_and_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Each with the line it begins on."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def test_a_heading_is_unique_in_its_page():
    none_of(at(path, number, heading) for path, text in rules().items() for number, heading in _repeated(text))


def _repeated(text: str) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for number, _, heading in headings(text):
        if slug(heading) in seen:
            yield number, heading
        seen.add(slug(heading))


def test_rules_have_plain_names():
    none_of(
        at(path, number, heading)
        for path, text in rules().items()
        for number, level, heading in headings(text)
        if level == 3 and not RULE_NAME.fullmatch(heading)
    )


def test_each_rule_says_where_it_is_kept():
    none_of(
        at(path, number, f"{heading}: names no module")
        for path, text in rules().items()
        for number, heading, body in _rules_of(text)
        if not MODULE_PATH.search(body)
    )


def _rules_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, name and text of each rule, which is a heading of the third level and what stands under it."""
    lines = text.splitlines()
    starts = [(number, level, heading) for number, level, heading in headings(text)]
    ends = [number for number, _, _ in starts[1:]] + [len(lines) + 1]
    for (number, level, heading), end in zip(starts, ends, strict=True):
        if level == 3:
            yield number, heading, "\n".join(lines[number : end - 1])


def test_the_module_that_keeps_a_rule_or_proves_a_promise_has_the_names_given_beside_it():
    none_of(
        at(path, line_of(text, match.start()), f"{match['path']} has no {name}")
        for path, text in docs().items()
        for match in KEPT_BY.finditer(text)
        for name in re.findall(r"`([\w.]+)`", match["names"])
        if not re.search(rf"\b{name.rpartition('.')[2]}\b", texts()[ROOT / match["path"]])
    )


def test_actions_of_the_log_that_users_are_told_of_are_logged():
    source = "".join(text for path, text in texts().items() if path.relative_to(ROOT).parts[0] in ("mld", "processors"))
    none_of(
        at(path, number, action)
        for path, text in docs().items()
        if path.parent.name == "use"
        for number, line in _rows_of_actions(text)
        for action in re.findall(r"`([a-z_]+)`", line)
        if f'"{action}"' not in source
    )


def _rows_of_actions(text: str) -> Iterator[tuple[int, str]]:
    """The first cells of tables whose first column is named for actions."""
    inside = False
    for number, line in enumerate(text.splitlines(), start=1):
        inside = line.startswith("|") and (inside or bool(re.match(r"\| `?action\b", line)))
        if inside and (match := ACTION_ROW.match(line)):
            yield number, match["actions"]


def test_modules_that_the_docs_name_exist():
    none_of(
        at(path, number, match["path"])
        for path, text in docs().items()
        for number, line in enumerate(text.splitlines(), start=1)
        for match in MODULE_PATH.finditer(line)
        if not (ROOT / match["path"]).is_file()
    )


def test_pages_that_source_tests_and_messages_name_exist():
    none_of(
        at(path, line_of(text, match.start()), match[0])
        for path, text in texts().items()
        for match in PAGE_PATH.finditer(text)
        if not (ROOT / match[0]).is_file()
    )


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Send-time validity", "send-time-validity"),
        ("What Java does differently", "what-java-does-differently"),
        ("`mld check`, and what it costs (in $)", "mld-check-and-what-it-costs-in-"),
        ("The [owner index](leases.md) of 3.x", "the-owner-index-of-3x"),
    ],
)
def test_anchors_are_made_as_github_makes_them(heading: str, anchor: str):
    assert slug(heading) == anchor


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Rules: leases spec, 15.3 (validity).", "x.py:1: leases spec"),
        ("One rule (leases\n    # spec) of many", "x.py:1: leases spec"),
        ("Rules: a.\nSee spec,\nsection 7, for more", "x.py:2: spec, section 7"),
        ("a leader stays away (section 7, 3)", "x.py:1: section 7"),
        ("see spec/shards.md", "x.py:1: spec/shards"),
    ],
)
def test_old_citations_are_noticed_across_lines(text: str, found: str):
    assert found in set(_old_citations(ROOT / "x.py", text))
