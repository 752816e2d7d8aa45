"""`identify`: finds the service and the operation of a request. Requests to services that are not served are refused.
Pure.

Requests to the served services are a POST to ``/``, with the operation in a header or a form. No other request is
passed to moto, so moto's other services, its pages and its controls (``/moto-api``) cannot be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from mld.local.accounts import Accounts
from mld.local.encodings import CBOR, encoding_of
from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis import REGION
from mld.local.kinesis_errors import ServiceError

EVENT_STREAM = "application/vnd.amazon.eventstream"

KINESIS = "kinesis"
DYNAMODB = "dynamodb"
DYNAMODB_STREAMS = "dynamodbstreams"
STS = "sts"
_SHOWN_BY_BROWSERS = "application/json"
"""Content type of errors in JSON, so that a browser shows their text."""
UNKNOWN_SERVICE = "UnknownServiceException"
NAMES = "Kinesis, DynamoDB, DynamoDB Streams, CloudWatch, STS and Glue"
FORM = "application/x-www-form-urlencoded"
_ASKED_CHARACTERS_MAX = 200
"""Most characters of a request that are quoted in a refusal."""
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/")


@dataclass(frozen=True, slots=True)
class ServedService:
    """A service. `name` is its name in faults and in the log of calls. A request names the service by the `prefix` of
    its target header (JSON, CBOR) or by the `version` in its form.
    """

    name: str
    prefix: str | None = None
    version: str | None = None
    backend: str | None = None
    """moto's name for the service; None if we have a model of the service ourselves."""

    @property
    def is_ours(self) -> bool:
        return self.backend is None


SERVED = (
    ServedService(KINESIS, prefix="Kinesis_20131202"),
    ServedService(DYNAMODB, prefix="DynamoDB_20120810", backend="dynamodb"),
    ServedService(DYNAMODB_STREAMS, prefix="DynamoDBStreams_20120810"),
    ServedService("monitoring", prefix="GraniteServiceVersion20100801", version="2010-08-01", backend="cloudwatch"),
    ServedService(STS, version="2011-06-15", backend="sts"),
    ServedService("glue", prefix="AWSGlue", backend="glue"),
)
_BY_PREFIX = {service.prefix: service for service in SERVED if service.prefix}
_BY_VERSION = {service.version: service for service in SERVED if service.version}


@dataclass(frozen=True, slots=True)
class Call:
    """The operation that a request asks for, with its service, account and region."""

    service: ServedService
    account: str
    region: str
    operation: str


def identify(request: HttpRequest, accounts: Accounts) -> Call | None:
    """Return the call that a request makes, in the region of its signature; None if it is to none of the services."""
    if (request.method, request.target) != ("POST", "/"):
        return None
    if target := request.headers.get("x-amz-target"):
        prefix, _, operation = target.partition(".")
        service = _BY_PREFIX.get(prefix)
    else:
        form = parse_qs(request.body.decode("latin-1")) if _is_form(request.headers) else {}
        operation = form.get("Action", [""])[0]
        service = _BY_VERSION.get(form.get("Version", [""])[0])
    if service is None:
        return None
    authorization = request.headers.get("authorization", "")
    scope = _SCOPE.search(authorization)
    return Call(service, accounts.of(authorization), scope[1] if scope else REGION, operation)


def unknown_service(request: HttpRequest) -> HttpResponse:
    """Return the refusal of a request for a service that is not served."""
    scope = _SCOPE.search(request.headers.get("authorization", ""))
    asked = f"the service '{scope[2]}'" if scope else f"{request.method} {request.target}"
    return error_answer(
        request.headers,
        UNKNOWN_SERVICE,
        f"The embedded AWS serves {NAMES}, and not {asked[:_ASKED_CHARACTERS_MAX]}",
        400,
    )


def error_answer(headers: Mapping[str, str], code: str, message: str, status: int) -> HttpResponse:
    """Return an error in the form that the SDK of this request understands."""
    scope = _SCOPE.search(headers.get("authorization", ""))
    if _is_form(headers) or (scope is not None and scope[2] == "s3"):
        xml = (
            "<ErrorResponse><Error><Type>Sender</Type>"
            f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error></ErrorResponse>"
        )
        return HttpResponse(xml.encode(), status, "text/xml")
    typed = [("x-amzn-ErrorType", code)]
    encoding = encoding_of(headers)
    content_type = encoding.content_type if encoding is CBOR else _SHOWN_BY_BROWSERS
    return HttpResponse(encoding.write(ServiceError(code, message).body), status, content_type, typed)


def _is_form(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").startswith(FORM)
