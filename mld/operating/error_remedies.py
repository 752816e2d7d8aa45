"""`with_remedy`: adds to the message of an error what the operator can do about it."""

from __future__ import annotations

from mld.core.errors import AwsUnreachableError, TableMissingError, TableThrottledError, TableUnavailableError

FORBIDDEN = ("AccessDenied", "not authorized")
"""Parts of the messages with which AWS refuses a call for lack of a permission."""
WRONG_NAMES = "check applicationName, tableName, regionName and dynamoDBEndpoint"


def with_remedy(error: Exception) -> str:
    """Return the message of the error, followed by a remedy if one is known."""
    text = str(error)
    if any(sign in text for sign in FORBIDDEN):
        return f"{text}; `mld iam-policy` with the same file prints the permissions that are needed"
    match error:
        case TableMissingError():
            return f"{text}; the first worker of an application makes its table: {WRONG_NAMES}"
        case TableThrottledError():
            return f"{text}; the table has too little capacity: give it more, or ask again"
        case TableUnavailableError() | AwsUnreachableError():
            return f"{text}; `mld doctor` with the same file looks for the reason"
    if "is no lease table" in text:
        return f"{text}; {WRONG_NAMES}"
    return text
