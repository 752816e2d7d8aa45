"""Which error of ours an exception of botocore is: what AWS refused, or a call without an answer.

Importing this module must stay cheap, so botocore is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mld.aws.boundary import reason_of
from mld.core.errors import AwsError, AwsUnreachableError, MldError

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.exceptions import ClientError


STATUS_UNKNOWN = 400
PARAMETERS_REFUSED = "ParamValidationError"
"""Code of a request that botocore itself refused to send, for example an empty name."""


def aws_failure(operation: str, error: Exception) -> MldError:
    """Return our error for an exception of botocore, of a credentials provider, or of this machine."""
    from botocore.exceptions import ClientError, ParamValidationError

    if isinstance(error, MldError):
        return error
    if isinstance(error, ClientError):
        return _aws_error(operation, error)
    if isinstance(error, ParamValidationError):
        return AwsError(operation, PARAMETERS_REFUSED, str(error))
    return AwsUnreachableError(operation, reason_of(error))  # a provider may raise anything: there is no answer


def limit_words(client: BaseClient, error: Exception) -> str | None:
    """Return which time limit of botocore ended a call, with its seconds; None if none did."""
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    if not isinstance(error, ReadTimeoutError | ConnectTimeoutError):
        return None
    limits: Any = client.meta.config
    is_read = isinstance(error, ReadTimeoutError)
    limit = f"answer within {limits.read_timeout:g} s" if is_read else f"connection within {limits.connect_timeout:g} s"
    return f"no {limit}: {reason_of(error)}"


def is_surprise(error: Exception) -> bool:
    """Return whether the error is unexpected in a call to AWS: a defect, or a machine without resources."""
    from botocore.exceptions import BotoCoreError, ClientError

    from mld.aws.kept_credentials import CredentialsExpiredError

    return not isinstance(error, OSError | BotoCoreError | ClientError | CredentialsExpiredError | MldError)


def _aws_error(operation: str, error: ClientError) -> AwsError:
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
    """Return an error code without its namespace (``com.amazonaws.kinesis#``) and without a trailing address of
    documentation.
    """
    return code.split(":", 1)[0].rsplit("#", 1)[-1]
