"""`KinesisError`: the errors of the embedded Kinesis, with AWS's codes and HTTP statuses. Pure.

Messages are those of AWS if we know them. Nothing should depend on their wording.
"""

from __future__ import annotations

import json

from mld.core.errors import MldError

ACCOUNT = "123456789012"
"""Account of callers whose access key belongs to no other account."""


class ServiceError(MldError):
    """A service that we model refuses an operation.

    In the answer, ``__type`` is `namespace` followed by `code`. `status` is the HTTP status.
    """

    namespace = ""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status

    @property
    def body(self) -> bytes:
        """The body of the answer, in JSON."""
        return json.dumps({"__type": self.namespace + self.code, "message": self.message}).encode()


class KinesisError(ServiceError):
    """Kinesis refuses an operation."""


def stream_not_found(name: str, account: str = ACCOUNT) -> KinesisError:
    return not_found(f"Stream {name} under account {account} not found.")


def shard_not_found(shard_id: str, name: str, account: str = ACCOUNT) -> KinesisError:
    return not_found(f"Could not find shard {shard_id} in stream {name} under account {account}.")


def not_found(message: str) -> KinesisError:
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    return KinesisError("ResourceInUseException", message)


def invalid(message: str) -> KinesisError:
    return KinesisError("InvalidArgumentException", message)


def validation(message: str) -> KinesisError:
    return KinesisError("ValidationException", f"1 validation error detected: {message}")


def missing(name: str) -> KinesisError:
    return validation(f"Value null at '{name}' failed to satisfy constraint: Member must not be null")


def limit_exceeded(message: str) -> KinesisError:
    return KinesisError("LimitExceededException", message)


def throttled(shard_id: str, name: str, account: str = ACCOUNT) -> KinesisError:
    return KinesisError(
        "ProvisionedThroughputExceededException",
        f"Rate exceeded for shard {shard_id} in stream {name} under account {account}.",
    )
