"""What to do about an error of AWS that ends a command, in a sentence. Pure."""

from __future__ import annotations

from mld.errors import AwsUnreachableError, TableMissingError, TableUnavailableError

FORBIDDEN = ("AccessDenied", "not authorized")
WRONG_NAMES = "check applicationName, tableName, regionName and dynamoDBEndpoint"


def with_remedy(error: Exception) -> str:
    """The error's own sentence, and what its reader can do, if that is known."""
    text = str(error)
    if any(sign in text for sign in FORBIDDEN):
        return f"{text}; `mld iam-policy` with the same file prints the permissions that are needed"
    match error:
        case TableMissingError():
            return f"{text}; the first worker of an application makes its table: {WRONG_NAMES}"
        case TableUnavailableError() | AwsUnreachableError():
            return f"{text}; `mld doctor` with the same file looks for the reason"
    if "is no lease table" in text:
        return f"{text}; {WRONG_NAMES}"
    return text
