"""Finds the service and the account that a request is for, and answers those for any other service. Pure, but for the
accounts that it learns.

Every request to these services is a POST to ``/``, with the operation in a header or in a form. Nothing else is passed
on, so that no other service of moto, none of its pages and none of its controls (``/moto-api``) can be reached.

The embedded AWS has no passwords and no IAM; it tells accounts apart by the access key of the signature alone:

* an access key of twelve digits is the account of that number (as in other stand-ins for AWS);
* a key that STS gave for a role is of the role's account;
* every other key is of the account 123456789012.

Every account may read and write the streams of every other one, if it names them by ARN.

Our models speak JSON. CBOR, which the SDK for Java speaks by default, is translated at the door: data are byte strings
instead of base64, times are integers of milliseconds under tag 1 instead of seconds. The codec is the library `cbor2`,
of the extra ``mld[local]``. The answer of SubscribeToShard is a stream of frames of
`application/vnd.amazon.eventstream`: total length, header length, CRC of both, headers (all of type string), payload,
CRC of everything before.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from mld.local.http import HttpRequest, HttpResponse
from mld.local.kinesis import REGION
from mld.local.stream_state import ACCOUNT, KinesisError, ServiceError

_EPOCH_TIME = 1
"""The tag."""
_DATA = "Data"
_TIME_SUFFIX = "Timestamp"

EVENT_STREAM = "application/vnd.amazon.eventstream"
_STRING_TYPE = 7

_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_NUMBER = re.compile(r"\d{12}")
_KEY_GIVEN = re.compile(rb"<AccessKeyId>([^<]+)</AccessKeyId>")
_ROLE_GIVEN = re.compile(rb"<Arn>arn:aws[^:<]*:sts::(\d{12}):")
_KEYS_MAX = 10_000
"""Keys remembered; the oldest are forgotten first."""

KINESIS = "kinesis"
DYNAMODB = "dynamodb"
DYNAMODB_STREAMS = "dynamodbstreams"
STS = "sts"
_SHOWN_BY_BROWSERS = "application/json"
UNKNOWN_SERVICE = "UnknownServiceException"
NAMES = "Kinesis, DynamoDB, DynamoDB Streams, CloudWatch, STS and Glue"
FORM = "application/x-www-form-urlencoded"
_ASKED_CHARACTERS_MAX = 200
"""Longest quotation of what was asked for in the answer."""
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/")


@dataclass(frozen=True, slots=True)
class Encoding:
    """`read` and `write` translate a whole body from and to JSON; `read` raises KinesisError."""

    content_type: str
    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def encoding_of(headers: Mapping[str, str]) -> Encoding:
    """Return the encoding of a request, and of its answer. `headers` have lower-case names."""
    return CBOR if headers.get("content-type", "").startswith(CBOR.content_type) else JSON


def _unchanged(body: bytes) -> bytes:
    return body


def _json_of(body: bytes) -> bytes:
    import cbor2  # only some SDKs speak it

    try:
        fields = cbor2.loads(body, semantic_decoders={_EPOCH_TIME: _seconds}) if body else {}
        return json.dumps(fields, default=_base64).encode()
    except (cbor2.CBORDecodeError, TypeError, ValueError, RecursionError) as error:
        raise KinesisError("SerializationException", f"The request is not CBOR of Kinesis: {error}") from None


def _seconds(milliseconds: Any, _immutable: bool) -> float:
    return float(milliseconds) / 1000


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a value of type {type(value).__name__}")


def _cbor_of(body: bytes) -> bytes:
    import cbor2

    if not body:
        return b""

    def typed(fields: dict[str, Any]) -> dict[str, Any]:
        for name, value in fields.items():
            if name == _DATA:
                fields[name] = base64.b64decode(value)
            elif name.endswith(_TIME_SUFFIX):
                fields[name] = cbor2.CBORTag(_EPOCH_TIME, round(value * 1000))
        return fields

    return cbor2.dumps(json.loads(body, object_hook=typed))


JSON = Encoding("application/x-amz-json-1.1", _unchanged, _unchanged)
CBOR = Encoding("application/x-amz-cbor-1.1", _json_of, _cbor_of)


# --- streams of events -----------------------------------------------------------------------------------------------


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        bytes((len(name),)) + name.encode() + struct.pack(">BH", _STRING_TYPE, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 12 + len(head) + len(payload) + 4, len(head))
    start = prelude + struct.pack(">I", zlib.crc32(prelude)) + head
    return start + payload + struct.pack(">I", zlib.crc32(payload, zlib.crc32(start)))


def initial_response(encoding: Encoding = JSON) -> bytes:
    """Return the event that must come first, or boto3 refuses the stream."""
    return event("initial-response", b"{}", encoding)


def event(event_type: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    """Return an event. `payload` is JSON, and is sent in `encoding`."""
    headers = {":event-type": event_type, ":content-type": encoding.content_type, ":message-type": "event"}
    return frame(headers, encoding.write(payload))


def exception(code: str, payload: bytes, encoding: Encoding = JSON) -> bytes:
    headers = {":exception-type": code, ":content-type": encoding.content_type, ":message-type": "exception"}
    return frame(headers, encoding.write(payload))


# --- services and accounts --------------------------------------------------------------------------------------------


class Accounts:
    """Mutable: STS's answers are shown to it."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, authorization: str) -> str:
        """Return the account of a request with this Authorization header."""
        credential = _CREDENTIAL.search(authorization)
        key = credential[1] if credential else ""
        return key if _NUMBER.fullmatch(key) else self._given.get(key, ACCOUNT)

    def learn(self, answer: bytes) -> None:
        """Remember the account of the key that this answer of STS gives, if it gives one."""
        key, role = _KEY_GIVEN.search(answer), _ROLE_GIVEN.search(answer)
        if key and role:
            self._given[key[1].decode("latin-1")] = role[1].decode()
            if len(self._given) > _KEYS_MAX:
                del self._given[next(iter(self._given))]


@dataclass(frozen=True, slots=True)
class ServedService:
    """`name` is used in signatures, faults and the log. A request names the service by the prefix of its target header
    (JSON, CBOR) or by the version in its form."""

    name: str
    prefix: str | None = None
    version: str | None = None
    backend: str | None = None
    """moto's name of it; None for those that we model ourselves."""

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
    service: ServedService
    account: str
    region: str
    operation: str


def identify(request: HttpRequest, accounts: Accounts) -> Call | None:
    """Return the call that the request makes; None if it is for no service of ours. The region is that of the
    signature.
    """
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
    scope = _SCOPE.search(request.headers.get("authorization", ""))
    asked = f"the service '{scope[2]}'" if scope else f"{request.method} {request.target}"
    return error_answer(
        request.headers,
        UNKNOWN_SERVICE,
        f"The embedded AWS serves {NAMES}, and not {asked[:_ASKED_CHARACTERS_MAX]}",
        400,
    )


def error_answer(headers: Mapping[str, str], code: str, message: str, status: int) -> HttpResponse:
    """Return an error in the form that the SDK of the request reads."""
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
