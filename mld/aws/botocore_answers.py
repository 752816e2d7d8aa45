"""Makes clients of botocore read answers with a size limit, and leave the bodies of records unparsed.

Importing this module must stay cheap, so botocore is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mld.aws.wire.answers import BODY_BYTES_MAX

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import CredentialResolver


READ_BYTES = 64 * 1024
METADATA_BYTES_MAX = 64 * 1024
"""Far above the keys and the session token of a role, which take some 2 KB."""
FIRST_ERROR_STATUS = 300
RAW_BODY = "RawBody"
"""Key of the body in an answer that `keep_raw_body` has left unparsed."""


def limit_answers(client: BaseClient) -> BaseClient:
    """Make the client hang up on an answer of more than BODY_BYTES_MAX, and refuse one that was cut off.

    By itself, botocore reads a huge answer to its end, and takes one that was cut off for whole. Return the client.
    """
    _limit(client._endpoint.http_session, BODY_BYTES_MAX)  # type: ignore[attr-defined]
    return client


def limit_metadata(resolver: CredentialResolver) -> CredentialResolver:
    """Make the providers that ask the metadata service of a container or an instance hang up on a long answer.

    Return the resolver.
    """
    for provider in resolver.providers:
        limit_fetcher(getattr(provider, "_fetcher", None) or getattr(provider, "_role_fetcher", None))
    return resolver


def limit_fetcher(fetcher: Any) -> None:
    """Make a fetcher of metadata hang up on a long answer. Do nothing for an object without an HTTP session."""
    if (session := getattr(fetcher, "_session", None)) is not None:
        _limit(session, METADATA_BYTES_MAX)


def _limit(session: Any, body_bytes_max: int) -> None:
    """Limit how much of an answer an HTTP session of botocore reads. A stream of events is left to its reader.

    Replaces the method `send` of the session. The new one raises errors of the types that botocore itself raises,
    because botocore looks at the type when it decides whether to repeat a request to a metadata service.
    """
    from botocore.exceptions import ConnectionClosedError, HTTPClientError, ReadTimeoutError
    from urllib3.exceptions import ProtocolError
    from urllib3.exceptions import ReadTimeoutError as SlowBodyError

    class CutOffError(ConnectionClosedError):
        """The answer is cut off; the text says by how much."""

        fmt = HTTPClientError.fmt  # it includes the text of `error`; that of the base class does not

    send = session.send

    def send_and_read(request: Any) -> Any:
        """Send a request, and read the body of the answer with the limit, instead of leaving that to botocore.

        `stream_output` makes botocore return before it reads the body. If the request had this option already, a
        successful answer stays unread, because its caller reads it as a stream.
        """
        is_read_later, request.stream_output = request.stream_output, True
        response = send(request)
        if not is_read_later or response.status_code >= FIRST_ERROR_STATUS:
            try:
                response._content = _body_of(response.raw, body_bytes_max)
            except SlowBodyError as error:
                raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
            except ProtocolError as error:
                raise CutOffError(error=error, endpoint_url=request.url) from error
            except Exception as error:
                raise HTTPClientError(error=error) from error
        return response

    session.send = send_and_read


def _body_of(raw: Any, body_bytes_max: int) -> bytes:
    """Read a body to its end. Raises ValueError for one that is too long, and errors of urllib3."""
    from urllib3.exceptions import ProtocolError

    body = bytearray()
    while piece := raw.read(READ_BYTES):
        body += piece
        if len(body) > body_bytes_max:
            raw.close()
            raise ValueError(f"more than {body_bytes_max} bytes")
    if raw.length_remaining:
        raise ProtocolError(f"cut off, {raw.length_remaining} bytes are missing")
    return bytes(body)


def keep_raw_body(client: BaseClient, operation: str) -> None:
    """Leave successful answers of `operation` unparsed, for `BotoService.fetch`.

    The body is taken away before botocore parses it, because parsing costs a hundred times as much as reading.
    `BotoService.call` of this operation returns only the raw body, under `RAW_BODY`.
    """

    def take_body(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
        """Move the body of a successful answer to where `BotoService.fetch` finds it, and leave an empty object for
        botocore to parse.
        """
        if response_dict["status_code"] < 300:
            customized_response_dict[RAW_BODY] = response_dict["body"]
            response_dict["body"] = b"{}"

    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}.{operation}", take_body, unique_id=f"mld-raw-{operation}")
