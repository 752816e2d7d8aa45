"""`S3Bucket`: reads and writes objects of one bucket, for programs that rely on conditional writes. Blocking, and safe
to use from several threads.

Two kinds of failure are kept apart. `NotMatched` says that a condition did not hold and nothing was written. After any
other `ObjectError` a write may have happened, or may still happen a moment later. Neither the SDK nor this class
retries a write, so that the caller learns of each write whose outcome is unknown. Reads, copies and deletions are
retried here. A caller to whom a second write does no harm can retry by `S3Bucket.repeated`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

TRIES_MAX = 4
"""Attempts at a call that may be retried. With the pauses they take some 2 s; then the caller gets the error."""
PAUSE_S = 0.25
COPY_BYTES_MAX = 5 << 30
"""Limit of CopyObject and PutObject; a larger object is copied or uploaded in parts."""
PART_BYTES = 1 << 30  # of one part of a copy
UPLOADED_PART_BYTES_MAX = 64 << 20
"""Largest part of an upload. Each part is in memory while it is uploaded, and several files are uploaded at once. An
upload may have 10,000 parts, so a file may have 640 GB.
"""
DELETE_MAX = 1_000
"""Most keys in one DeleteObjects."""
_NOT_MATCHED = frozenset(("PreconditionFailed", "412"))  # codes: the condition of a write did not hold
_MISSING = frozenset(("NoSuchKey", "404", "NotFound"))  # codes: there is no such object
_PASSING = frozenset(
    (
        *("SlowDown", "ServiceUnavailable", "InternalError", "InternalFailure", "RequestTimeout", "Throttling"),
        *("ThrottlingException", "RequestLimitExceeded", "ConditionalRequestConflict", "OperationAborted"),
        *("ExpiredToken", "ExpiredTokenException", "RequestTimeTooSkewed", "BandwidthLimitExceeded"),
    )
)
"""Codes of answers after which another attempt may succeed, whatever their status."""


class ObjectError(OSError):
    """The request failed, or its outcome is unknown. Another attempt may succeed. The text is one sentence.

    It is an OSError, so that programs handle the errors of a bucket like those of a disk.
    """


class ObjectRefused(ObjectError):
    """The store refuses the request, and would refuse it again; a person has to change something."""


class NotMatched(ObjectError):
    """The condition of a write did not hold, and nothing was written; or the source of a copy was replaced."""


class SourceGone(NotMatched):
    """The source of a copy does not exist."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The content of an object, and its etag."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a list. `modified_s` is the time of its last change, in epoch seconds by the clock of the store."""

    key: str
    size: int
    modified_s: float
    etag: str


class S3Bucket:
    """Reads and writes the objects of one bucket."""

    def __init__(
        self,
        client: Callable[[], Any],
        name: str,
        *,
        owner: str | None = None,
        kms_key: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        copy_bytes_max: int = COPY_BYTES_MAX,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Make the bucket `name`. `owner` is the account that it must belong to, `kms_key` the key with which objects
        are encrypted (SSE-KMS). Objects above `copy_bytes_max` are copied in parts of `part_bytes`.

        `client` is called with the first request. It returns a client of botocore for S3 that makes one attempt per
        call.
        """
        self._client = cache(client)
        self.name = name
        self._common = {"Bucket": name} | ({"ExpectedBucketOwner": owner} if owner else {})
        self._source_owner = {"ExpectedSourceBucketOwner": owner} if owner else {}
        self._encryption = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
        self._sleep = sleep
        self._copy_bytes_max, self._part_bytes = copy_bytes_max, part_bytes
        self._store_ahead_s = 0.0  # the time of the store minus that of this machine
        self.requests = 0
        """Number of requests sent so far."""

    def now_s(self) -> float:
        """Return the time of the store by its last answer; before the first answer, the time of this machine."""
        return time.time() + self._store_ahead_s

    # --- not retried -------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, if_etag: str | None = None, if_absent: bool = False) -> str:
        """Write an object, under a condition if one is given, and return its etag. Raises NotMatched and other
        ObjectErrors.
        """
        condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": if_etag} if if_etag is not None else {}
        answer = self._call("put_object", self._encryption, condition, Key=key, Body=data)
        return str(answer["ETag"])

    def upload(self, key: str, file: Path) -> None:
        """Write a file as an object. After an ObjectError, the object may still appear a moment later."""
        if file.stat().st_size > self._copy_bytes_max:
            self._upload_in_parts(key, file)
            return
        with file.open("rb") as body:
            self._call("put_object", self._encryption, Key=key, Body=body)

    def _upload_in_parts(self, key: str, file: Path) -> None:
        """Write a file as an object by a multipart upload."""

        def parts(upload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
            """Send the file part by part; yield the entry of each part."""
            with file.open("rb") as body:
                number = 0
                while data := body.read(min(self._part_bytes, UPLOADED_PART_BYTES_MAX)):
                    number += 1
                    answer = self._call("upload_part", upload, Key=key, PartNumber=number, Body=data)
                    yield {"ETag": answer["ETag"], "PartNumber": number}

        self._in_parts(key, parts)

    # --- retried -----------------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredObject | None:
        """Return an object; None if there is no object with this key. Raises ObjectError."""

        def attempt() -> StoredObject | None:
            """Read the object once; None if it does not exist."""
            answer = self._call("get_object", Key=key, missing=True)
            if answer is None:
                return None
            try:
                return StoredObject(answer["Body"].read(), str(answer["ETag"]))
            except Exception as error:  # from the SDK, urllib3 or a socket
                raise ObjectError(f"reading {self._place(key)}: {type(error).__name__}") from error

        return self.repeated(attempt)

    def exists(self, key: str) -> bool:
        """Return whether the object is there. Raises ObjectError."""
        return self._head(key) is not None

    def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket, and replace the target if it exists. Raises SourceGone and other
        ObjectErrors."""
        found = self._head(source)
        if found is None:
            raise SourceGone(f"copying {self._place(source)}: it is gone")
        source_params = {
            "CopySource": {"Bucket": self.name, "Key": source},
            "CopySourceIfMatch": found["ETag"],
            **self._source_owner,
        }
        size = int(found["ContentLength"])
        if size > self._copy_bytes_max:
            self.repeated(lambda: self._copy_in_parts(source_params, size, target))
        else:
            self.repeated(lambda: self._call("copy_object", source_params, self._encryption, Key=target))

    def _head(self, key: str) -> Any:
        """Return the answer to HeadObject; None if the object does not exist. Raises ObjectError."""
        return self.repeated(lambda: self._call("head_object", Key=key, missing=True))

    def _copy_in_parts(self, source_params: Mapping[str, Any], size: int, target: str) -> None:
        """Copy an object by a multipart upload. `source_params` are the parameters that name the source."""

        def parts(upload: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
            """Have the store copy the object part by part; yield the entry of each part."""
            for number, start in enumerate(range(0, size, self._part_bytes), 1):
                end = min(start + self._part_bytes, size) - 1
                answer = self._call(
                    "upload_part_copy",
                    source_params,
                    upload,
                    Key=target,
                    PartNumber=number,
                    CopySourceRange=f"bytes={start}-{end}",
                )
                yield {"ETag": answer["CopyPartResult"]["ETag"], "PartNumber": number}

        self._in_parts(target, parts)

    def _in_parts(self, key: str, parts: Callable[[Mapping[str, Any]], Iterable[dict[str, Any]]]) -> None:
        """Make an object by a multipart upload. `parts` sends the parts and yields the entry of each for the
        completion.

        A failed upload is aborted.
        """
        upload = {"UploadId": self._call("create_multipart_upload", self._encryption, Key=key)["UploadId"]}
        try:
            done = list(parts(upload))
            self._call("complete_multipart_upload", upload, Key=key, MultipartUpload={"Parts": done})
        except ObjectError:
            with suppress(ObjectError):  # if this fails, too, a lifecycle rule of the bucket has to remove the parts
                self._call("abort_multipart_upload", upload, Key=key)
            raise

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects. It is no error if some do not exist. Raises ObjectError."""
        waiting = list(keys)
        for start in range(0, len(waiting), DELETE_MAX):
            part = [{"Key": key} for key in waiting[start : start + DELETE_MAX]]
            wanted = {"Objects": part, "Quiet": True}
            answer = self.repeated(lambda wanted=wanted: self._call("delete_objects", Delete=wanted))  # type: ignore[misc]
            if errors := answer.get("Errors"):
                first = errors[0]
                raise ObjectError(f"deleting {self._place(first.get('Key', ''))}: {first.get('Code')}")

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects whose keys begin with `prefix`, in the order of their keys. Raises ObjectError."""
        more: dict[str, Any] = {}
        while True:
            answer = self.repeated(lambda: self._call("list_objects_v2", more, Prefix=prefix))
            for item in answer.get("Contents", ()):
                yield ListedObject(item["Key"], item["Size"], item["LastModified"].timestamp(), str(item["ETag"]))
            if not answer.get("IsTruncated"):
                return
            more["ContinuationToken"] = answer["NextContinuationToken"]

    # --- calls -------------------------------------------------------------------------------------------------------

    def repeated(self, attempt: Callable[[], Result]) -> Result:
        """Return the result of `attempt`, and retry it if another attempt may succeed. A write in `attempt` may happen
        twice. Raises ObjectError.
        """
        pause_s = PAUSE_S
        for _ in range(TRIES_MAX - 1):
            try:
                return attempt()
            except (ObjectRefused, NotMatched):
                raise
            except ObjectError:
                self._sleep(pause_s)
                pause_s *= 2
        return attempt()

    def _call(self, operation: str, *more: Mapping[str, Any], missing: bool = False, **parameters: Any) -> Any:
        """Send one request, and return the answer. Its parameters are those that all requests have, those in the
        mappings `more`, and `parameters`. `operation` is the name of a method of the client.

        With `missing`, return None if the object does not exist, instead of raising an error. Raises ObjectError.
        """
        for mapping in more:
            parameters |= mapping
        self.requests += 1
        try:
            answer = getattr(self._client(), operation)(**self._common, **parameters)
        except ObjectError:  # the client could not be made
            raise
        except Exception as error:  # from the SDK, urllib3, a socket or a credentials provider
            code, status, message = _answer_of(error)
            doing = f"{operation} of {self._place(str(parameters.get('Key', parameters.get('Prefix', ''))))}"
            if missing and (code in _MISSING or status == 404) and code != "NoSuchBucket":
                return None
            raise _translated(code, status, f"{doing}: {code or type(error).__name__}{message}", parameters) from error
        if date := answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date"):
            with suppress(ValueError):
                self._store_ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        return answer

    def _place(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"s3://{self.name}/{key}"


def _answer_of(error: Exception) -> tuple[str, int, str]:
    """Return code, status and message of the store's answer; "", 0 and "" if no answer came."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        return "", 0, ""
    details = response.get("Error", {})
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = str(details.get("Message", ""))
    return str(details.get("Code", "")), int(status or 0), f" ({message[:200]})" if message else ""


def _translated(code: str, status: int, sentence: str, parameters: Mapping[str, Any]) -> ObjectError:
    """Return the error, with the text `sentence`, for a failed request with these parameters.

    Code and status of the answer decide its class: NotMatched if a condition did not hold or the source of a copy is
    gone, ObjectRefused if the store would refuse the request again, else ObjectError, after which another attempt may
    succeed. If no answer came, `code` is empty.
    """
    copies = "CopySource" in parameters
    if code in _NOT_MATCHED or status == 412:
        return NotMatched(sentence)
    if code == "NoSuchBucket":
        return ObjectRefused(sentence)
    if code in _MISSING or status == 404:
        # A put with IfMatch gets this answer, too, if the object does not exist.
        return (
            SourceGone(sentence)
            if copies
            else NotMatched(sentence)
            if "IfMatch" in parameters
            else ObjectError(sentence)
        )
    if not code or code in _PASSING or status >= 500 or status in (408, 409, 429):
        # With 501 the store says that it does not implement the request.
        return ObjectRefused(sentence) if status == 501 else ObjectError(sentence)
    return ObjectRefused(sentence) if 300 <= status < 500 else ObjectError(sentence)
