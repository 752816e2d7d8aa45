"""`OtherServices`: answers requests to DynamoDB, CloudWatch, STS and Glue with moto's WSGI applications.

In moto, a conditional write is not atomic if several threads write. So moto is imported and used only in the single
thread of one executor. moto has an application for each service, and `mld.local.routing` selects it. moto's own
dispatcher is not used, because it would serve all of AWS and moto's controls.

moto is imported in the background after the start; meanwhile Kinesis already answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis_errors import ServiceError
from mld.local.legacy_conditions import UnsupportedConditionError, rewrite_expected
from mld.local.moto_tables import StreamSpecificationError, TableChanges, TableEvent, install
from mld.local.routing import DYNAMODB, Call

log = logging.getLogger(__name__)

_HOP_BY_HOP = frozenset(("connection", "content-length", "content-type", "date", "server", "transfer-encoding"))

_ACCOUNT_HEADER = "x-moto-account-id"
"""Header that tells moto the account of a request. If a client sends it, it is removed, because the client could choose
any account by it."""
_CORS = "access-control-"
"""Prefix of the headers by which moto would let every web page read its answers. They are removed from the answers; see
`mld.core.webrule`."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OtherServices:
    """Answers requests with moto. Importing moto begins at once; the first answers wait for that."""

    def __init__(self, port: int, now: Callable[[], float], publish: Callable[[Sequence[TableEvent]], None]) -> None:
        """Begin to import moto. `now` is the server's clock.

        `publish` is called on the event loop with the changes that each request made to tables, in order, and before
        the request is answered.
        """
        loop = asyncio.get_running_loop()
        self._port = port

        def publish_on_loop(events: Sequence[TableEvent]) -> None:
            with contextlib.suppress(RuntimeError):  # the server and the loop are closed
                loop.call_soon_threadsafe(publish, events)

        self._changes = TableChanges(now, publish_on_loop)
        self._is_closed = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moto")
        self._apps: dict[str, WsgiApp] = {}
        self._importing = self._executor.submit(_import)

    def close(self) -> None:
        """Cancel the requests that wait for moto; later ones get no answer."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def answer(self, call: Call, request: HttpRequest) -> HttpResponse | None:
        """Return moto's answer; None if the server is closed, because its clients then get no answer."""
        if self._is_closed:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, call, request)

    async def expire(self) -> int:
        """Delete the items whose time to live is over, in all tables. Return how many were deleted; 0 if the server is
        closed.
        """
        if self._is_closed:
            return 0
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._changes.expire)

    # --- in moto's thread --------------------------------------------------------------------------------------------

    def _answer(self, call: Call, request: HttpRequest) -> HttpResponse:
        """Return moto's answer. If the request changes tables of DynamoDB, publish the changes."""
        if call.service.name != DYNAMODB:
            return self._call(call, request)
        try:
            self._changes.begin(call.operation, request.body, call.account, call.region)
        except StreamSpecificationError as error:
            return _error("ValidationException", str(error))
        try:
            return self._call(call, request)
        finally:
            self._changes.finish(call.operation, call.account, call.region)

    def _call(self, call: Call, request: HttpRequest) -> HttpResponse:
        """Return moto's answer, with corrections where moto deviates from AWS. Never raises."""
        if call.operation == "DeleteItem":
            try:
                body = json.dumps(rewrite_expected(json.loads(request.body))).encode()
            except (UnsupportedConditionError, ValueError, KeyError, IndexError) as error:
                return _error("ValidationException", str(error))
            headers = request.headers | {"content-length": str(len(body))}
            request = HttpRequest(request.method, request.target, headers, body)
        try:
            backend = call.service.backend
            assert backend is not None, "the others have models of ours"
            if backend not in self._apps:
                make_app = self._importing.result()
                self._apps[backend] = make_app(backend)
            response = self._run(self._apps[backend], request, call.account)
        except Exception as error:
            # If moto raises an exception, the client gets an error, and the thread goes on.
            if "Index already exists" in str(error):  # two workers that start at the same time both create it
                return _error("ValidationException", "Attempting to create an index which already exists")
            log.exception("moto failed", extra={"action": "local_moto_failed"})
            return HttpResponse(ServiceError("InternalFailure", str(error)).body, 500)
        if response.status == 400 and b"Invalid index: " in response.body:
            # For a missing index, moto reports a missing resource, but DynamoDB a validation error.
            return _error("ValidationException", "The table does not have the specified index")
        return response

    def _run(self, app: WsgiApp, request: HttpRequest, account: str) -> HttpResponse:
        """Call a WSGI application of moto for an account, and return its answer without headers that must not pass."""
        from werkzeug.test import EnvironBuilder, run_wsgi_app

        # Header names with an underscore are left out: WSGI cannot tell them from the same name with a dash.
        headers = [(name, value) for name, value in request.headers.items() if "_" not in name]
        headers = [(name, value) for name, value in headers if name != _ACCOUNT_HEADER] + [(_ACCOUNT_HEADER, account)]
        builder = EnvironBuilder(
            request.target,
            f"http://127.0.0.1:{self._port}",
            method=request.method,
            headers=headers,
            data=request.body,
            errors_stream=sys.stderr,
        )
        pieces, status, answer_headers = run_wsgi_app(app, builder.get_environ(), buffered=True)
        kept = [
            (name, value)
            for name, value in answer_headers
            if name.lower() not in _HOP_BY_HOP and not name.lower().startswith(_CORS)
        ]
        return HttpResponse(
            b"".join(pieces), int(status.split(" ", 1)[0]), answer_headers.get("content-type", ""), kept
        )


def _import() -> Callable[[str], WsgiApp]:
    """Load moto, and return moto's function that makes the WSGI application of a service."""
    from moto.moto_server.werkzeug_app import create_backend_app

    install()
    make_app: Callable[[str], WsgiApp] = create_backend_app
    return make_app


def _error(code: str, message: str) -> HttpResponse:
    """Return an error in the form of DynamoDB."""
    return HttpResponse(ServiceError(code, message).body, 400, "application/x-amz-json-1.0")
