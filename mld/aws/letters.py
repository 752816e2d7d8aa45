"""Where dead letters go: a directory, a bucket of S3, another stream of Kinesis, a queue of SQS.

`put` returns only when the letter is durable; any doubt is a DeadLetterError, and then the record stays where it is.
Names come from the record, so that a letter written twice replaces itself in a directory and in a bucket; a stream and
a queue then hold it twice (a FIFO queue drops a second one within five minutes). Nothing is cut to fit: a letter that
is too large for its place, 1 MiB for a queue and what a stream is set to, is refused by the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from mld.aws.client_factory import AwsService, ClientFactory, service_of
from mld.aws.threads import Workers
from mld.core.errors import AwsError, AwsUnreachableError, DeadLetterError
from mld.properties.settings import Settings
from mld.properties.values import DeadLetterKind

CALL_TIMEOUT_S = 30.0
"""How long a client waits for its service, each time."""
PUT_TIMEOUT_S = 60.0
"""A letter has up to 14 MB; a disk or service that hangs for longer is tried again later."""


@dataclass(frozen=True, slots=True)
class Letter:
    """`path` says whose record it is: application, stream, shard; `name` is unique there. `body` is one JSON object."""

    path: tuple[str, str, str]
    name: str
    body: bytes

    @property
    def shard_id(self) -> str:
        return self.path[-1]


class LetterBox(Protocol):
    async def open(self) -> None:
        """See that letters can probably be written. Raises StartupError."""
        ...

    async def put(self, letter: Letter) -> str:
        """Write a letter, and return where it is, once it is durable. Raises DeadLetterError if that is not certain."""
        ...

    async def close(self) -> None: ...


# --- a directory -----------------------------------------------------------------------------------------------------


class DirectoryBox:
    """One file of one line for each letter, ``application/stream/shard/sequence-sub.json``, for its owner only."""

    def __init__(self, directory: str) -> None:
        self._root = Path(directory).absolute()
        self._threads = Workers(threads_max=1, name="aws-letters")

    async def open(self) -> None:
        """Open the box. Nothing is made before the first letter."""

    async def put(self, letter: Letter) -> str:
        try:
            async with asyncio.timeout(PUT_TIMEOUT_S):
                return await self._threads.run(lambda: self._write(letter))
        except Exception as error:  # of the system, of the pool, the time-out: whatever it is, nothing is certain
            reason = getattr(error, "strerror", None) or str(error) or f"not done within {PUT_TIMEOUT_S:g} s"
            raise DeadLetterError(f"{self._root}: {reason} (key mld.deadLetter)") from error

    async def close(self) -> None:
        self._threads.close()

    def _write(self, letter: Letter) -> str:
        directory = self._root.joinpath(*map(_file_name, letter.path))
        _make(directory)
        file = directory / f"{letter.name}.json"
        draft = directory / f".{letter.name}.{os.getpid()}.tmp"
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()  # of a former process with our id
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(letter.body + b"\n")
            out.flush()
            os.fsync(out.fileno())
        draft.rename(file)
        _sync(directory)
        return str(file)


def _make(directory: Path) -> None:
    """Make the directory and those missing above it, for its owner only, so that they survive a power failure."""
    if directory.is_dir():
        return
    _make(directory.parent)
    with contextlib.suppress(FileExistsError):  # another shard's letter, or another process
        directory.mkdir(0o700)
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_name(text: str) -> str:
    """Return `text` as one component of a path, escaped."""
    name = quote(text, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


# --- services --------------------------------------------------------------------------------------------------------


class ServiceBox:
    """What the boxes of AWS have in common: one call for each letter."""

    def __init__(self, service: AwsService, place: str) -> None:
        self._service = service
        self._place = place

    async def open(self) -> None:
        await self._service.open()

    async def close(self) -> None:
        await self._service.close()

    async def _call(self, operation: str, params: dict[str, Any], letter: Letter) -> dict[str, Any]:
        try:
            return await self._service.call(operation, params, timeout_s=PUT_TIMEOUT_S)
        except (AwsError, AwsUnreachableError) as error:
            size = len(letter.body)
            raise DeadLetterError(f"{self._place}: a letter of {size} bytes: {error} (key mld.deadLetter)") from error


class BucketBox(ServiceBox):
    """One object for each letter, under the prefix and then named as in a directory."""

    def __init__(self, service: AwsService, bucket: str, prefix: str) -> None:
        super().__init__(service, f"s3://{bucket}")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    async def put(self, letter: Letter) -> str:
        key = f"{self._prefix}{'/'.join(map(_file_name, letter.path))}/{letter.name}.json"
        params = {"Bucket": self._bucket, "Key": key, "Body": letter.body, "ContentType": "application/json"}
        await self._call("PutObject", params, letter)
        return f"s3://{self._bucket}/{key}"


class StreamBox(ServiceBox):
    """One record for each letter; its partition key is the shard it comes from."""

    def __init__(self, service: AwsService, stream_arn: str) -> None:
        super().__init__(service, stream_arn)
        self._arn = stream_arn

    async def put(self, letter: Letter) -> str:
        params = {"StreamARN": self._arn, "Data": letter.body, "PartitionKey": letter.shard_id}
        answer = await self._call("PutRecord", params, letter)
        return f"{self._arn} {answer.get('ShardId')} {answer.get('SequenceNumber')}"


class QueueBox(ServiceBox):
    """One message for each letter; in a FIFO queue those of a shard are a group."""

    def __init__(self, service: AwsService, url: str) -> None:
        super().__init__(service, url)
        self._url = url

    async def put(self, letter: Letter) -> str:
        params = {"QueueUrl": self._url, "MessageBody": letter.body.decode("ascii")}
        if self._url.endswith(".fifo"):
            identity = "/".join((*letter.path, letter.name))
            params["MessageGroupId"] = letter.shard_id
            params["MessageDeduplicationId"] = sha256(identity.encode()).hexdigest()
        answer = await self._call("SendMessage", params, letter)
        return f"{self._url} {answer.get('MessageId')}"


# --- the one that the settings name ----------------------------------------------------------------------------------


def letter_box_of(settings: Settings, factory: ClientFactory) -> LetterBox | None:
    """Return the box of dead letters, not open yet; None if no record is ever set aside. Does no I/O."""
    place = settings.child.dead_letter
    if place is None or settings.child.poison_attempts is None:
        return None
    match place.kind:
        case DeadLetterKind.DIRECTORY:
            return DirectoryBox(place.name)
        case DeadLetterKind.S3:
            return BucketBox(_service(factory, "s3", None, None), place.name, place.prefix)
        case DeadLetterKind.KINESIS:
            is_beside = place.region == settings.kinesis.region
            endpoint = settings.kinesis.endpoint if is_beside else None
            return StreamBox(_service(factory, "kinesis", place.region, endpoint), place.name)
        case DeadLetterKind.SQS:
            parts = urlsplit(place.name)
            return QueueBox(_service(factory, "sqs", place.region, f"{parts.scheme}://{parts.netloc}"), place.name)


def _service(factory: ClientFactory, name: str, region: str | None, endpoint: str | None) -> AwsService:
    access = factory.access_beside_kinesis(region, endpoint)
    return service_of(factory, name, label="dead letters", threads_max=1, read_timeout_s=CALL_TIMEOUT_S, access=access)
