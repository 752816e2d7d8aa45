"""`serving`: serves the pages of a daemon, or of a group of workers, at the address of `mld.http`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from mld.core.errors import StartupError
from mld.core.webrule import WebRule
from mld.properties.settings import ServingSettings
from mld.serving.http import HttpServer
from mld.serving.http_answers import (
    Route,
)

log = logging.getLogger(__name__)


PROBES = ("/livez", "/healthz", "/readyz")


@asynccontextmanager
async def serving(
    routes: Mapping[str, Route], settings: ServingSettings, at: Path | None = None
) -> AsyncIterator[None]:
    """Serve the routes at the Unix socket `at` if it is given, else at the address of `mld.http`, while the context is
    open. If there is neither, nothing is served.

    Raises StartupError if the address cannot be bound.
    """
    server = HttpServer(
        routes, WebRule(frozenset(settings.http_hosts), "add the name to mld.httpHosts", links=True), PROBES
    )
    try:
        if at is not None:
            await server.start_at(at)
        elif settings.http is not None:
            shown = replace(settings.http, port=await server.start(settings.http.host, settings.http.port))
            log.info("status page at http://%s/", shown, extra={"action": "http_serving", "address": str(shown)})
    except OSError as error:
        why = error.strerror or error
        raise StartupError(f"choose another address for mld.http = {settings.http}: {why}") from error
    try:
        yield
    finally:
        await server.close()
