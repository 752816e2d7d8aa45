"""Errors of AWS that end a command come with what to do about them."""

from __future__ import annotations

import pytest

from mld.core.errors import MldError, TableError, TableMissingError, TableThrottledError, TableUnavailableError
from mld.operating.error_remedies import with_remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (
            TableMissingError("table clicks: Scan: ResourceNotFoundException"),
            "check applicationName, tableName, regionName",
        ),
        (TableUnavailableError("Scan: AccessDeniedException: not authorized"), "`mld iam-policy`"),
        (TableUnavailableError("Scan: no answer: refused"), "`mld doctor`"),
        (TableThrottledError("Scan: throttled"), "too little capacity"),
        (TableError("table orders is no lease table: it has rows without"), "check applicationName"),
    ],
)
def test_the_remedy_follows_the_sentence(error: MldError, remedy: str) -> None:
    said = with_remedy(error)
    assert said.startswith(str(error))
    assert remedy in said


def test_where_none_is_known_the_sentence_stands_alone() -> None:
    assert with_remedy(TableError("the row cannot be read")) == "the row cannot be read"
