"""Translates exceptions of botocore into errors of mld: AWS has refused a request, or a call got no answer.

Importing this module must stay cheap, so botocore is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mld.aws.boundary import reason_of
from mld.core.errors import AwsError, AwsUnreachableError, MldError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError


STATUS_UNKNOWN = 400  # stands for the HTTP status if botocore does not report one
PARAMETERS_REFUSED = "ParamValidationError"
"""Code of a request that botocore itself refused to send, for example an empty name."""


def aws_failure(operation: str, error: Exception) -> MldError:
    """Return the `MldError` for an exception from botocore, a credentials provider or the operating system."""
    from botocore.exceptions import ClientError, ParamValidationError

    if isinstance(error, MldError):
        return error
    if isinstance(error, ClientError):
        return _aws_error(operation, error)
    if isinstance(error, ParamValidationError):
        return AwsError(operation, PARAMETERS_REFUSED, str(error))
    return AwsUnreachableError(operation, reason_of(error))  # a credentials provider, too, may raise anything


def limit_words(client: BaseClient, error: Exception, took_s: float) -> str | None:
    """Return, in words and with its seconds, the time limit of botocore that ended a call after `took_s` seconds.

    Return None if the call ended for another reason.
    """
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    if not isinstance(error, ReadTimeoutError | ConnectTimeoutError):
        return None
    limits: Any = client.meta.config
    if isinstance(error, ConnectTimeoutError):
        limit = f"connection within {limits.connect_timeout:g} s"
    elif is_no_connection(client, error, took_s):  # botocore reports a slow TLS handshake as a read timeout
        limit = f"TLS connection within {limits.connect_timeout:g} s"
    else:
        limit = f"answer within {limits.read_timeout:g} s"
    return f"no {limit}: {reason_of(error)}"


def is_no_connection(client: BaseClient, error: Exception, took_s: float) -> bool:
    """Return whether a call ended after `took_s` seconds because botocore could not connect: no server is at the
    address, or none with a certificate that is trusted.

    If a TLS handshake takes too long, botocore reports a read timeout, but already after its connect timeout.
    """
    from botocore.exceptions import ConnectionError, ReadTimeoutError

    limits: Any = client.meta.config
    return isinstance(error, ConnectionError) or (isinstance(error, ReadTimeoutError) and took_s < limits.read_timeout)


def is_surprise(error: Exception) -> bool:
    """Return whether the error is unexpected in a call to AWS: it shows a defect, or that the machine has run out of
    resources.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from mld.aws.kept_credentials import CredentialsExpiredError

    return not isinstance(error, OSError | BotoCoreError | ClientError | CredentialsExpiredError | MldError)


def _aws_error(operation: str, error: ClientError) -> AwsError:
    """Return an AwsError with the code, message and HTTP status that AWS sent, and the old row if it was sent, too."""
    response: Any = error.response
    details = response.get("Error", {})
    return AwsError(
        operation,
        plain_code(str(details.get("Code", "Unknown"))),
        str(details.get("Message", "")),
        status=int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", STATUS_UNKNOWN)),
        item=response.get("Item"),
    )


def plain_code(code: str) -> str:
    """Return an error code without the namespace before it (``com.amazonaws.kinesis#``) and the URL after it."""
    return code.split(":", 1)[0].rsplit("#", 1)[-1]
