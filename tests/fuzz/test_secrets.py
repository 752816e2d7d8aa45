"""A slice of the scan for secrets in what `mld check` says; the long run is `python -m tests.fuzz.secrets`."""

from __future__ import annotations

from tests.fuzz.secrets import run

EXAMPLES = 8


def test_what_is_not_known_to_be_harmless_is_never_shown() -> None:
    run(EXAMPLES, derandomize=True)
