"""DynamoDB, CloudWatch, STS and Glue: moto's WSGI applications behind one lock.

moto's conditional writes are not atomic between threads. Everything it does, its import included, happens on the single
thread of one executor, which is the lock. Each service is an application of its own, and `mld.local.routing` chooses
the one for a request: moto's own dispatcher, which serves all of AWS and moto's controls, is not used.

What a request does to tables with a stream is told to the model of DynamoDB Streams (`mld.local.table_changes`).

moto is imported in the background after the start; meanwhile Kinesis answers.

moto ignores DeleteItem's old argument `Expected` and deletes the item; Java workers of a mixed fleet use it. It is
rewritten as a ConditionExpression (DynamoDB API reference, legacy conditional parameters).
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
from mld.local.kinesis.json_api import error_body
from mld.local.routing import DYNAMODB, Call
from mld.local.table_changes import StreamSpecificationError, TableChanges, TableEvent, install

_COMPARATORS = {"EQ": "=", "NE": "<>", "LE": "<=", "LT": "<", "GE": ">=", "GT": ">"}
_FUNCTIONS = {"CONTAINS": "contains", "BEGINS_WITH": "begins_with"}


class UnsupportedConditionError(ValueError):
    """A comparison this rewrite does not know."""


def rewrite_expected(request: dict[str, Any]) -> dict[str, Any]:
    """Return the same request with a ConditionExpression in place of `Expected`; unchanged if there is none."""
    expected = request.get("Expected")
    if not expected or "ConditionExpression" in request:
        return request
    names: dict[str, str] = dict(request.get("ExpressionAttributeNames") or {})
    values: dict[str, Any] = dict(request.get("ExpressionAttributeValues") or {})
    terms = [_term(i, attribute, rule, names, values) for i, (attribute, rule) in enumerate(sorted(expected.items()))]
    joined = f" {request.get('ConditionalOperator', 'AND')} ".join(terms)
    kept = {k: v for k, v in request.items() if k not in ("Expected", "ConditionalOperator")}
    kept |= {"ConditionExpression": joined, "ExpressionAttributeNames": names}
    return kept | ({"ExpressionAttributeValues": values} if values else {})


def _term(index: int, attribute: str, rule: dict[str, Any], names: dict[str, str], values: dict[str, Any]) -> str:
    name = f"#expected{index}"
    names[name] = attribute

    def value(number: int, content: Any) -> str:
        values[f":expected{index}_{number}"] = content
        return f":expected{index}_{number}"

    operator = rule.get("ComparisonOperator")
    if operator is None:
        if rule.get("Exists") is False:
            return f"attribute_not_exists({name})"
        return f"{name} = {value(0, rule['Value'])}"
    operands = [value(i, v) for i, v in enumerate(rule.get("AttributeValueList") or [])]
    if operator in _COMPARATORS:
        return f"{name} {_COMPARATORS[operator]} {operands[0]}"
    if operator in _FUNCTIONS:
        return f"{_FUNCTIONS[operator]}({name}, {operands[0]})"
    match operator:
        case "NULL":
            return f"attribute_not_exists({name})"
        case "NOT_NULL":
            return f"attribute_exists({name})"
        case "NOT_CONTAINS":
            return f"NOT contains({name}, {operands[0]})"
        case "BETWEEN":
            return f"{name} BETWEEN {operands[0]} AND {operands[1]}"
        case "IN":
            return f"{name} IN ({', '.join(operands)})"
        case _:
            raise UnsupportedConditionError(f"Expected.{attribute}: unknown ComparisonOperator {operator}")


log = logging.getLogger(__name__)

_HOP_BY_HOP = frozenset(("connection", "content-length", "content-type", "date", "server", "transfer-encoding"))

_ACCOUNT_HEADER = "x-moto-account-id"
"""Tells moto the account of a request; taken from clients, it would be another way to choose one."""
_CORS = "access-control-"
"""Headers by which moto lets every page read its answers; see `mld.core.webrule`."""

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OtherServices:
    """Begins the import at once; an answer waits for it on the same thread."""

    def __init__(self, port: int, now: Callable[[], float], publish: Callable[[Sequence[TableEvent]], None]) -> None:
        """Prepare moto: `now` is the server's clock. `publish` is called on the loop, in the order of the requests,
        and before the answer to the request that did these things.
        """
        loop = asyncio.get_running_loop()
        self._port = port
        self._changes = TableChanges(now, lambda events: _call_soon(loop, publish, events))
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="moto")
        self._apps: dict[str, WsgiApp] = {}
        self._importing = self._executor.submit(_import)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def answer(self, call: Call, request: HttpRequest) -> HttpResponse:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, call, request)

    async def expire(self) -> int:
        """Delete the items of all tables whose time to live is over; how many."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._expire)

    # --- on the one thread -------------------------------------------------------------------------------------------

    def _expire(self) -> int:
        return self._changes.expire()

    def _answer(self, call: Call, request: HttpRequest) -> HttpResponse:
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
            app = self._apps.get(backend) or self._apps.setdefault(backend, self._importing.result()(backend))
            response = self._run(app, request, call.account)
        except Exception as error:
            # Whatever moto raises becomes an answer, and the one thread goes on.
            log.exception("moto failed", extra={"action": "local_moto_failed"})
            return HttpResponse(error_body("InternalFailure", str(error)), 500)
        if response.status == 400 and b"Invalid index: " in response.body:
            # For moto, a query of an index that does not exist finds no resource.
            return _error("ValidationException", "The table does not have the specified index")
        return response

    def _run(self, app: WsgiApp, request: HttpRequest, account: str) -> HttpResponse:
        from werkzeug.test import EnvironBuilder, run_wsgi_app

        # In WSGI a name with an underscore would stand for the one with a dash.
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
        pieces, status, answered = run_wsgi_app(app, builder.get_environ(), buffered=True)
        kept = [
            (name, value)
            for name, value in answered
            if name.lower() not in _HOP_BY_HOP and not name.lower().startswith(_CORS)
        ]
        return HttpResponse(b"".join(pieces), int(status.split(" ", 1)[0]), answered.get("content-type", ""), kept)


def _import() -> Callable[[str], WsgiApp]:
    """Return what makes the application of a service."""
    from moto.moto_server.werkzeug_app import create_backend_app

    install()
    make_app: Callable[[str], WsgiApp] = create_backend_app
    return make_app


def _error(code: str, message: str) -> HttpResponse:
    return HttpResponse(error_body(code, message), 400, "application/x-amz-json-1.0")


def _call_soon(
    loop: asyncio.AbstractEventLoop,
    publish: Callable[[Sequence[TableEvent]], None],
    events: Sequence[TableEvent],
) -> None:
    with contextlib.suppress(RuntimeError):  # the server is closed, and its loop with it
        loop.call_soon_threadsafe(publish, events)
