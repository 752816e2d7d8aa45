"""How the words of an act are read."""

from __future__ import annotations

import click
import pytest

from mld.operating.options import file_and_words

FILE = "app.properties"


@pytest.mark.parametrize(
    ("words", "option", "names", "meant"),
    [
        ((FILE, "3", "w2"), None, ("SHARD", "WORKER"), (FILE, ("3", "w2"))),
        (("3", "w2", FILE), None, ("SHARD", "WORKER"), (FILE, ("3", "w2"))),
        (("app.conf", "3"), None, ("SHARD",), ("app.conf", ("3",))),
        ((FILE, "w.properties"), None, ("WORKER",), (FILE, ("w.properties",))),
        (("3",), FILE, ("SHARD",), (FILE, ("3",))),
        ((FILE,), None, (), (FILE, ())),
    ],
)
def test_the_file_stands_before_or_after_the_words(
    words: tuple[str, ...], option: str | None, names: tuple[str, ...], meant: tuple[str, tuple[str, ...]]
) -> None:
    assert file_and_words(words, option, *names) == meant


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((FILE,), "missing argument: WORKER"),
        ((FILE, "3"), "missing argument: WORKER"),
        (("3", "w2"), "give a properties file"),
        ((FILE, "3", "w2", "w3"), "too many arguments"),
    ],
)
def test_what_is_missing_or_too_much_is_said(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(click.UsageError, match=says):
        file_and_words(words, None, "SHARD", "WORKER")
