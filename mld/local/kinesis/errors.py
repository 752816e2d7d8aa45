"""The answers "no" of Kinesis, with the codes and HTTP statuses AWS uses.

The messages follow the wording seen from the service where it is known; nobody should match on them.
"""

from __future__ import annotations

from mld.errors import MldError


class KinesisError(MldError):
    """An operation was refused; `code` goes to the client as ``__type``."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def stream_not_found(name: str, account: str) -> KinesisError:
    return KinesisError("ResourceNotFoundException", f"Stream {name} under account {account} not found.")


def shard_not_found(shard_id: str, name: str, account: str) -> KinesisError:
    return KinesisError(
        "ResourceNotFoundException", f"Could not find shard {shard_id} in stream {name} under account {account}."
    )


def not_found(message: str) -> KinesisError:
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    return KinesisError("ResourceInUseException", message)


def invalid(message: str) -> KinesisError:
    return KinesisError("InvalidArgumentException", message)


def validation(message: str) -> KinesisError:
    return KinesisError("ValidationException", f"1 validation error detected: {message}")


def limit_exceeded(message: str) -> KinesisError:
    return KinesisError("LimitExceededException", message)


def throttled(shard_id: str, name: str, account: str) -> KinesisError:
    return KinesisError("ProvisionedThroughputExceededException", throttled_text(shard_id, name, account))


def throttled_text(shard_id: str, name: str, account: str) -> str:
    return f"Rate exceeded for shard {shard_id} in stream {name} under account {account}."
