"""`BucketBox`, `StreamBox`, `QueueBox`: write dead letters as objects of S3, records of Kinesis or messages of SQS."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from mld.aws.letters import PUT_TIMEOUT_S, Letter, file_name
from mld.aws.service_factory import AwsService
from mld.core.errors import AwsError, AwsUnreachableError, DeadLetterError


class ServiceBox:
    """Base of these boxes, which write each letter by one call. `place` names the box in errors."""

    def __init__(self, service: AwsService, place: str) -> None:
        self._service = service
        self._place = place

    async def open(self) -> None:
        await self._service.open()

    async def close(self) -> None:
        await self._service.close()

    async def _call(self, operation: str, params: dict[str, Any], letter: Letter) -> dict[str, Any]:
        """Call the service with a dead letter. Raises DeadLetterError."""
        try:
            return await self._service.call(operation, params, timeout_s=PUT_TIMEOUT_S)
        except (AwsError, AwsUnreachableError) as error:
            size = len(letter.body)
            raise DeadLetterError(f"{self._place}: a letter of {size} bytes: {error} (key mld.deadLetter)") from error


class BucketBox(ServiceBox):
    """Writes each letter as an object. Its key is `prefix`, then the path that the letter has in a `DirectoryBox`."""

    def __init__(self, service: AwsService, bucket: str, prefix: str) -> None:
        super().__init__(service, f"s3://{bucket}")
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    async def put(self, letter: Letter) -> str:
        """Write the letter as an object, and return its URI. Raises DeadLetterError if it may not be durable."""
        key = f"{self._prefix}{'/'.join(map(file_name, letter.path))}/{letter.name}.json"
        params = {"Bucket": self._bucket, "Key": key, "Body": letter.body, "ContentType": "application/json"}
        await self._call("PutObject", params, letter)
        return f"s3://{self._bucket}/{key}"


class StreamBox(ServiceBox):
    """Writes each letter as a record. The partition key is the id of the shard that the letter's record is from."""

    def __init__(self, service: AwsService, stream_arn: str) -> None:
        super().__init__(service, stream_arn)
        self._arn = stream_arn

    async def put(self, letter: Letter) -> str:
        """Write the letter as a record, and return the ARN of the stream, the shard and the sequence number. Raises
        DeadLetterError if it may not be durable.
        """
        params = {"StreamARN": self._arn, "Data": letter.body, "PartitionKey": letter.shard_id}
        answer = await self._call("PutRecord", params, letter)
        return f"{self._arn} {answer.get('ShardId')} {answer.get('SequenceNumber')}"


class QueueBox(ServiceBox):
    """Writes each letter as a message. In a FIFO queue, the letters of one shard form a message group."""

    def __init__(self, service: AwsService, url: str) -> None:
        super().__init__(service, url)
        self._url = url

    async def put(self, letter: Letter) -> str:
        """Send the letter as a message, and return the URL of the queue and the id of the message. Raises
        DeadLetterError if it may not be durable.
        """
        params = {"QueueUrl": self._url, "MessageBody": letter.body.decode("ascii")}
        if self._url.endswith(".fifo"):
            identity = "/".join((*letter.path, letter.name))
            params["MessageGroupId"] = letter.shard_id
            params["MessageDeduplicationId"] = sha256(identity.encode()).hexdigest()
        answer = await self._call("SendMessage", params, letter)
        return f"{self._url} {answer.get('MessageId')}"
