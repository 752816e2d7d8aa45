"""A real browser without a window: Chromium, driven by Playwright's client.

For tests that have to see what a page can do, or how it looks. Chromium is not installed by us; where there is none,
they skip.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.support.patience import PATIENCE_S

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 1000 * PATIENCE_S
_FLAGS = (
    "--no-sandbox",  # it does not start as root with one, and the pages are ours
    "--disable-gpu",
    "--disable-quic",
    "--no-proxy-server",
    "--disable-component-update",
    # A browser that does not ask before a page reaches this machine, as most do not.
    "--disable-features=LocalNetworkAccessChecks",
)


def find_browser() -> str:
    """Its path; skips the test where there is none, also under `make test`."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
    return found


class Browser:
    """A context manager; `hosts` are names that it resolves to 127.0.0.1."""

    def __init__(self, path: str, hosts: tuple[str, ...] = ()) -> None:
        self._path = path
        self._rules = ", ".join(f"MAP {name} 127.0.0.1" for name in hosts)

    def __enter__(self) -> Self:
        self._client = sync_playwright().start()
        try:
            self._browser = self._client.chromium.launch(
                executable_path=self._path, args=[*_FLAGS, f"--host-resolver-rules={self._rules}"]
            )
        except BaseException:
            self._client.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._browser.close()
        self._client.stop()

    @contextmanager
    def tab(self, **options: Any) -> Iterator[Page]:
        """A tab in a profile of its own; `options` are those of `Browser.new_context`."""
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        try:
            yield context.new_page()
        finally:
            context.close()

    def run(self, url: str, function: str, *arguments: object) -> Any:
        """Open the page in a tab of its own and call a JavaScript function in it; what its promise brings, as JSON."""
        with self.tab() as page:
            page.goto(url)
            return page.evaluate(f"({function})({', '.join(map(json.dumps, arguments))})")
