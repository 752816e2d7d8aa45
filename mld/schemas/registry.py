"""`SchemaRegistry`: schema versions of the Glue Schema Registry, kept for a day, each asked for once at a time.

Rules: retrieval#schema-lookups. An id that the registry does not know is not asked for again for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from mld.aws.boundary import raises_only
from mld.aws.service import Service
from mld.clock import Clock
from mld.errors import AwsError, AwsUnreachableError, SchemaUnknownError, SchemaUnreachableError
from mld.schemas.versions import SchemaVersion, version_of

log = logging.getLogger(__name__)

KEY = "mld.schemaRegistry.directory"
NEGATIVE_S = 60.0
TIMEOUT_S = 10.0
UNKNOWN_CODES = frozenset({"EntityNotFoundException", "InvalidInputException"})


@dataclass(frozen=True, slots=True)
class _KeptVersion:
    found: SchemaVersion | str
    """The version, or why there is none."""
    until_s: float
    schema_file: str | None = None


@raises_only(SchemaUnreachableError)
class SchemaRegistry:
    """`size` versions are kept for `keep_s` each. `folder`: where definitions are written for children.

    `in_thread` calls a function that writes a file.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock,
        *,
        size: int,
        keep_s: float,
        folder: Path,
        in_thread: Callable[..., Awaitable[str | None]] = asyncio.to_thread,
    ) -> None:
        self._in_thread = in_thread
        self._service = service
        self._clock = clock
        self._size = size
        self._keep_s = keep_s
        self._folder = folder
        self._kept: OrderedDict[str, _KeptVersion] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_KeptVersion]] = {}

    async def version(self, version_id: str) -> tuple[SchemaVersion, str | None]:
        """A schema version, and the file that has its definition.

        Raises SchemaUnknownError for an id that the registry does not have, or does not let us have, and
        SchemaUnreachableError if it cannot tell now.
        """
        kept = self._kept.get(version_id)
        if kept is None or self._clock.monotonic() >= kept.until_s:
            if version_id not in self._asking:
                task = asyncio.create_task(self._ask(version_id))
                self._asking[version_id] = task
                task.add_done_callback(lambda _: self._asking.pop(version_id, None))
            kept = await asyncio.shield(self._asking[version_id])
        if isinstance(kept.found, str):
            raise SchemaUnknownError(kept.found)
        return kept.found, kept.schema_file

    async def _ask(self, version_id: str) -> _KeptVersion:
        now = self._clock.monotonic()
        try:
            answer = await self._service.call("GetSchemaVersion", {"SchemaVersionId": version_id}, timeout_s=TIMEOUT_S)
            found = version_of(version_id, answer)
            kept = _KeptVersion(found, now + self._keep_s, await self._in_thread(self._written, found))
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
            kept = _KeptVersion(f"the registry does not know schema version {version_id}: {error}", now + NEGATIVE_S)
        except (KeyError, TypeError) as error:
            raise SchemaUnreachableError(f"GetSchemaVersion: the answer is not as documented: {error!r}") from error
        self._kept[version_id] = kept
        self._kept.move_to_end(version_id)
        while len(self._kept) > self._size:
            self._kept.popitem(last=False)
        return kept

    def _written(self, version: SchemaVersion) -> str | None:
        """The file with the definition: private, and whole or not there."""
        path = self._folder / version.version_id
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.lstat()
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
                raise PermissionError(f"{self._folder} is not a directory of our user alone; make it so, or set {KEY}")
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
        """End what is under way."""
        for task in tuple(self._asking.values()):
            task.cancel()
