"""Pages that code writes, in whole or in part. `make docs` writes them: `python -m tests.support.written_pages`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mld.operating.service_facts import ServiceFacts
from mld.operating.service_unit import unit
from tests.support import dependencies_page, man_page
from tests.support import metrics_page as metrics
from tests.support import settings_page as keys
from tests.support.servers import ROOT

PLAIN_SERVICE = ServiceFacts(
    name="mld-clicks",
    stream="clicks",
    command=("/opt/mld/bin/mld", "run", "/etc/mld/app.properties"),
    grace_s=25.0,
    child_stop_s=5.0,
    user="mld",
)
PAGES: Mapping[str, Callable[[str], str]] = {
    "bin/mld.1": man_page.page,
    "docs/develop/dependencies.md": dependencies_page.updated,
    "docs/use/configuration.md": keys.updated,
    "docs/use/metrics.md": metrics.updated,
    "docs/use/mld.service": lambda _: unit(PLAIN_SERVICE),
}
"""What each page becomes: what people have written in it stays."""

if __name__ == "__main__":
    for name, updated in PAGES.items():
        page = ROOT / name
        page.write_text(updated(page.read_text("utf-8")), "utf-8")
