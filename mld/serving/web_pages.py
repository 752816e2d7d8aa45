"""`WebPages`: the pages of a daemon: probes, metrics, the status page and its data. They all read `DaemonStatus`."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from importlib import resources

from mld import pip_install
from mld.core.errors import TableError
from mld.core.turns import in_turns
from mld.serving.daemon_status import DaemonStatus
from mld.serving.http_answers import (
    HttpAnswer,
    Question,
    Route,
    SharedAnswers,
    text_answer,
)
from mld.serving.json_pieces import Document

log = logging.getLogger(__name__)

PAGE = "page.html"
APPS_VALID_S = 60.0  # every reading sends a request for each table of the account
APPS_TIMEOUT_S = 7.0  # less than the supervisor of a group waits for an answer
HTML, JSON = "text/html; charset=utf-8", "application/json"


class WebPages:
    """Makes the answers of a daemon's pages. No request changes anything."""

    def __init__(self, status: DaemonStatus, *, with_metrics: bool = True) -> None:
        self._status = status
        self._with_metrics = with_metrics
        self._expositions, self._documents = SharedAnswers(), SharedAnswers()
        self._accounts = SharedAnswers(APPS_VALID_S)

    def routes(self) -> dict[str, Route]:
        """Return for each path the function that answers it."""
        return {
            "/": self._page,
            "/status.json": self._document,
            "/apps.json": self._apps,
            "/livez": self._live,
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._exposition,
        }

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _page(self, _: Question) -> HttpAnswer:
        """Answer with the status page. Its script fetches the data from `/status.json`."""
        page, policy = page_and_policy()
        return HttpAnswer(200, HTML, page, {"content-security-policy": policy})

    async def _document(self, question: Question) -> HttpAnswer:
        """Answer with the status document, compressed if the client takes that. Requests at the same time share one
        document.
        """
        zipped = takes_gzip(question.headers)
        headers = {"vary": "accept-encoding"} | ({"content-encoding": "gzip"} if zipped else {})

        async def made() -> HttpAnswer:
            """Make a new document."""
            return HttpAnswer(200, JSON, await self._status.body(zipped=zipped), headers)

        return await self._documents.answer(str(zipped), made)

    async def _apps(self, _: Question) -> HttpAnswer:
        """Answer with the applications of the account. All callers get the same answer for APPS_VALID_S."""
        return await self._accounts.answer("", self._account)

    async def _account(self) -> HttpAnswer:
        """Return the applications of the account as JSON, or a sentence about why they cannot be listed."""
        try:
            async with asyncio.timeout(APPS_TIMEOUT_S):
                account = await self._status.apps()
        except TimeoutError:
            account = unlisted(f"the tables were not read within {APPS_TIMEOUT_S:g} s: use mld apps")
        except TableError as error:
            account = unlisted(self._status.scrub(str(error)))
        return HttpAnswer(200, JSON, json.dumps(account).encode())

    async def _live(self, _: Question) -> HttpAnswer:
        return probed(self._status.why_not_alive())

    async def _ready(self, _: Question) -> HttpAnswer:
        return probed(self._status.why_not_ready())

    async def _exposition(self, question: Question) -> HttpAnswer:
        """Answer with the metrics, or with 404 if the settings do not want them here. Scrapers that ask at the same
        time share one answer.
        """
        if not self._with_metrics:
            return text_answer(404, "add prometheus to mld.metrics: metrics are not served")
        return await exposed(question, self._expositions, self._exposed)

    async def _exposed(self, accept: str) -> HttpAnswer:
        """Answer with the metrics in the format that the client prefers."""
        from mld.serving.prometheus import exposition_steps, process_collector

        status = self._status
        steps = exposition_steps(status.metrics, status.identity, status.instant(), accept, process_collector())
        content_type, pieces = await in_turns(steps)
        return HttpAnswer(200, content_type, pieces)


def unlisted(why: str) -> Document:
    """Return the answer for an account whose tables cannot be listed."""
    return {"applications": [], "unseen": [why]}


async def exposed(
    question: Question, shared: SharedAnswers, make: Callable[[str], Awaitable[HttpAnswer]]
) -> HttpAnswer:
    """Return the metrics, which `make` writes in the format that the scraper's `Accept` header prefers. Scrapers that
    get the same format at about the same time share an answer, which `shared` keeps.
    """
    try:
        from prometheus_client.exposition import choose_encoder
    except ImportError:
        return text_answer(501, f"install the extra: {pip_install('metrics')}")
    accept = question.headers.get("accept", "")
    _, content_type = choose_encoder(accept)
    return await shared.answer(content_type, partial(make, accept))


def probed(why_not: str | None) -> HttpAnswer:
    """Return the answer to a probe: 200 if `why_not` is None, else 503 with this reason."""
    return text_answer(200, "ok") if why_not is None else text_answer(503, why_not)


def takes_gzip(headers: Mapping[str, str]) -> bool:
    """Return whether Accept-Encoding names gzip, and does not refuse it."""
    for offer in headers.get("accept-encoding", "").lower().split(","):
        coding, _, parameter = offer.replace(" ", "").partition(";")
        if coding == "gzip":
            return re.fullmatch(r"q=0(\.0*)?", parameter) is None
    return False


@cache
def page_and_policy() -> tuple[bytes, str]:
    """Return the page, and a Content-Security-Policy that allows only the page's own script and style."""
    page = resources.files("mld.serving").joinpath(PAGE).read_bytes()
    hashes = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(inner).digest()).decode()}'"
            for inner in re.findall(rb"<%b>(.*?)</%b>" % (tag.encode(), tag.encode()), page, re.DOTALL)
        )
        for tag in ("script", "style")
    }
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
