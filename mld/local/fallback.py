"""DynamoDB, CloudWatch, STS and Glue: moto's WSGI applications behind one lock.

moto's conditional writes are not atomic between threads. Everything it does, its import included, happens on the single
thread of one executor, which is the lock. Each service is an application of its own, and `mld.local.routing` chooses
the one for a request: moto's own dispatcher, which serves all of AWS and moto's controls, is not used.

moto is imported in the background after the start; meanwhile Kinesis answers. It comes with the extra ``mld[local]``;
without it these services answer with an error that says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mld.local.expected import UnsupportedConditionError, rewrite_expected
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis.json_api import error_body

log = logging.getLogger(__name__)

MISSING = "DynamoDB, CloudWatch, STS and Glue need the packages of the extra 'local': pip install 'mld[local]'"
_HOP_BY_HOP = frozenset(("connection", "content-length", "content-type", "date", "server", "transfer-encoding"))

_CORS = "access-control-"
"""Headers by which moto lets every page read its answers; see `mld.webrule`."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OtherServices:
    """Begins the import at once; an answer waits for it on the same thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moto")
        self._make_app: Callable[[str], WsgiApp] | None = None
        self._apps: dict[str, WsgiApp] = {}
        self._executor.submit(self._import)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def answer(self, backend: str, request: HttpRequest) -> HttpResponse:
        """`backend` is moto's name of the service."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, backend, request)

    # --- on the one thread -------------------------------------------------------------------------------------------

    def _import(self) -> None:
        try:
            from moto.moto_server.werkzeug_app import create_backend_app
        except ImportError:
            return
        self._make_app = create_backend_app

    def _call(self, backend: str, request: HttpRequest) -> HttpResponse:
        if self._make_app is None:
            return _error("MissingDependencyException", MISSING)
        if request.headers.get("x-amz-target", "").endswith(".DeleteItem"):
            try:
                body = json.dumps(rewrite_expected(json.loads(request.body))).encode()
            except (UnsupportedConditionError, ValueError, KeyError, IndexError) as error:
                return _error("ValidationException", str(error))
            headers = request.headers | {"content-length": str(len(body))}
            request = HttpRequest(request.method, request.target, headers, body)
        try:
            app = self._apps.get(backend) or self._apps.setdefault(backend, self._make_app(backend))
            response = self._run(app, request)
        except Exception as error:
            # Whatever moto raises becomes an answer, and the one thread goes on.
            log.exception("moto failed", extra={"action": "local_moto_failed"})
            return HttpResponse(error_body("InternalFailure", str(error)), 500)
        if response.status == 400 and b"Invalid index: " in response.body:
            # For moto, a query of an index that does not exist finds no resource.
            return _error("ValidationException", "The table does not have the specified index")
        return response

    def _run(self, app: WsgiApp, request: HttpRequest) -> HttpResponse:
        from werkzeug.test import EnvironBuilder, run_wsgi_app

        # In WSGI a name with an underscore would stand for the one with a dash.
        headers = [(name, value) for name, value in request.headers.items() if "_" not in name]
        builder = EnvironBuilder(
            request.target,
            f"http://127.0.0.1:{self._port}",
            method=request.method,
            headers=headers,
            data=request.body,
            errors_stream=sys.stderr,
        )
        pieces, status, answered = run_wsgi_app(app, builder.get_environ(), buffered=True)
        kept = [
            (name, value)
            for name, value in answered
            if name.lower() not in _HOP_BY_HOP and not name.lower().startswith(_CORS)
        ]
        return HttpResponse(b"".join(pieces), int(status.split(" ", 1)[0]), answered.get("content-type", ""), kept)


def _error(code: str, message: str) -> HttpResponse:
    return HttpResponse(error_body(code, message), 400, "application/x-amz-json-1.0")
