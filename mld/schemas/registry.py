"""`SchemaRegistry`: looks up schema versions in the Glue Schema Registry, and keeps each for a day.

Rules: retrieval#schema-lookups. Simultaneous lookups of one version share one request. An id that the registry does not
know is not looked up again for a minute; after a lookup without an answer, the id is not looked up for some seconds. So
a page of 10,000 records waits for one answer, not for 10,000.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.core.clock import Clock
from mld.core.errors import AwsError, AwsUnreachableError, SchemaUnknownError, SchemaUnreachableError

log = logging.getLogger(__name__)

VERSIONS_MAX = 200
KEPT_S = 86_400.0  # versions do not change, but mld's permission to read them may
NEGATIVE_S = 60.0
NO_ANSWER_S = 10.0
FAILURES_KEPT_MAX = 1000
"""Failed lookups are kept apart from versions, so that the ids in damaged records do not displace real versions."""
TIMEOUT_S = 10.0
UNKNOWN_CODES = frozenset({"EntityNotFoundException", "InvalidInputException"})

KeptT = TypeVar("KeptT")


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a schema. `data_format` is AVRO, JSON or PROTOBUF; `name` is the name of the schema."""

    version_id: str
    name: str
    data_format: str
    definition: str


def version_of(version_id: str, answer: Mapping[str, Any]) -> SchemaVersion:
    """Return the schema version in an answer of GetSchemaVersion. Raises KeyError or TypeError if it has none."""
    arn = answer.get("SchemaArn")
    return SchemaVersion(
        version_id,
        "" if not isinstance(arn, str) else arn.rpartition("/")[2],
        str(answer["DataFormat"]),
        str(answer["SchemaDefinition"]),
    )


@dataclass(frozen=True, slots=True)
class _KeptVersion:
    found: SchemaVersion
    until_s: float
    schema_file: str | None


@dataclass(frozen=True, slots=True)
class _KeptFailure:
    why: str
    until_s: float
    is_unknown: bool
    """Whether the registry does not have this version; else there was no usable answer."""


@raises_only(SchemaUnreachableError)
class SchemaRegistry:
    """Looks up schema versions, and keeps them. Their definitions are written into `folder`, where children read them.
    `in_thread` runs calls that block.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock,
        *,
        folder: Path,
        size: int = VERSIONS_MAX,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        self._in_thread = in_thread
        self._service = service
        self._clock = clock
        self._size = size
        self._folder = folder
        self._kept: OrderedDict[str, _KeptVersion] = OrderedDict()
        self._failed: OrderedDict[str, _KeptFailure] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_KeptVersion | _KeptFailure]] = {}

    async def version(self, version_id: str) -> tuple[SchemaVersion, str | None]:
        """Return a schema version, and the path of the file with its definition; None if the file could not be written.

        Raises SchemaUnknownError if the registry does not have this version or does not allow us to read it, and
        SchemaUnreachableError if there is no answer now.
        """
        kept: _KeptVersion | _KeptFailure | None = self._kept.get(version_id) or self._failed.get(version_id)
        if kept is None or self._clock.monotonic() >= kept.until_s:
            if version_id not in self._asking:
                task = asyncio.create_task(self._look_up_and_keep(version_id))
                self._asking[version_id] = task
                task.add_done_callback(lambda _: self._asking.pop(version_id, None))
            kept = await asyncio.shield(self._asking[version_id])
        if isinstance(kept, _KeptFailure):
            raise SchemaUnknownError(kept.why) if kept.is_unknown else SchemaUnreachableError(kept.why)
        if version_id in self._kept:
            self._kept.move_to_end(version_id)
        return kept.found, kept.schema_file

    async def _look_up_and_keep(self, version_id: str) -> _KeptVersion | _KeptFailure:
        """Look up a version, and keep the result or the failure. If there is no answer, keep a version that was found
        earlier.
        """
        try:
            kept = await self._look_up(version_id)
        except (SchemaUnknownError, SchemaUnreachableError) as error:
            is_unknown = isinstance(error, SchemaUnknownError)
            until_s = self._clock.monotonic() + (NEGATIVE_S if is_unknown else NO_ANSWER_S)
            known = self._kept.get(version_id)
            if known is not None and not is_unknown:  # versions do not change, so the old answer is still right
                self._kept[version_id] = again = replace(known, until_s=until_s)
                return again
            failure = _KeptFailure(str(error), until_s, is_unknown)
            self._kept.pop(version_id, None)
            _keep(self._failed, version_id, failure, FAILURES_KEPT_MAX)
            return failure
        self._failed.pop(version_id, None)
        _keep(self._kept, version_id, kept, self._size)
        return kept

    async def _look_up(self, version_id: str) -> _KeptVersion:
        """Ask the registry, and write the definition into a file. Raises SchemaUnknownError, SchemaUnreachableError."""
        now = self._clock.monotonic()
        try:
            answer = await self._service.call("GetSchemaVersion", {"SchemaVersionId": version_id}, timeout_s=TIMEOUT_S)
            found = version_of(version_id, answer)
            kept = _KeptVersion(found, now + KEPT_S, await self._in_thread(self._written, found))
            log.info(
                "schema version %s of %s",
                version_id,
                found.name,
                extra={"action": "schema_found", "format": found.data_format},
            )
        except AwsUnreachableError as error:
            raise SchemaUnreachableError(str(error)) from error
        except AwsError as error:
            if error.code not in UNKNOWN_CODES:
                raise SchemaUnreachableError(str(error)) from error
            raise SchemaUnknownError(f"the registry does not know schema version {version_id}: {error}") from error
        except (KeyError, TypeError) as error:
            raise SchemaUnreachableError(f"GetSchemaVersion: the answer is not as documented: {error!r}") from error
        return kept

    def _written(self, version: SchemaVersion) -> str | None:
        """Write the definition into a private file, completely or not at all, and return its path; None if that
        fails.
        """
        path = self._folder / version.version_id
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
                raise PermissionError(f"{self._folder} is not a directory of our user alone; make it so, or set TMPDIR")
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self._folder, delete=False) as file:
                file.write(version.definition)
            Path(file.name).replace(path)
        except OSError as error:
            log.warning(
                "the definition of schema version %s is not written: %s",
                version.version_id,
                error,
                extra={"action": "schema_file_failed"},
            )
            return None
        return str(path)

    async def close(self) -> None:
        """Cancel all lookups that are under way."""
        for task in tuple(self._asking.values()):
            task.cancel()


def _keep(kept: OrderedDict[str, KeptT], version_id: str, what: KeptT, size: int) -> None:
    """Add an entry, and drop the oldest ones if there are more than `size`."""
    kept[version_id] = what
    kept.move_to_end(version_id)
    while len(kept) > size:
        kept.popitem(last=False)
