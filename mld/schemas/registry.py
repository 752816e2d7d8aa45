"""`SchemaRegistry`: looks up schema versions in the Glue Schema Registry, and keeps each for a day.

Rules: retrieval#schema-lookups. Simultaneous lookups of one version share one request. An id that the registry does not
know is not looked up again for a minute; after a lookup without an answer, the id is not looked up for some seconds.
The ids of a page are looked up together, within a time limit for the page. Each shard has a budget of lookups, because
producers can make up any number of ids, and all applications of an AWS account share the registry's quota.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from mld.aws.service import Service
from mld.consumer.record_budgets import LOOKUP_WITHOUT_RESULT, RecordBudget
from mld.core.clock import Clock
from mld.core.error_boundary import survived
from mld.core.errors import (
    AwsError,
    AwsUnreachableError,
    BudgetSpentError,
    SchemaUnknownError,
    SchemaUnreachableError,
)

log = logging.getLogger(__name__)

VERSIONS_MAX = 200
KEPT_S = 86_400.0  # versions do not change, but mld's permission to read them may
NEGATIVE_S = 60.0
NO_ANSWER_S = 10.0
FAILURES_KEPT_MAX = 1000
"""Failed lookups are kept apart from versions, so that the ids in damaged records do not displace real versions."""
TIMEOUT_S = 10.0
LOOKUPS_AT_ONCE_MAX = 4
"""How many lookups run at once, for one page and for all pages of a worker together."""
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
class KeptVersion:
    """A schema version that was found. It is looked up again after `until_s` (monotonic). `schema_file` is the file
    with its definition; None if it could not be written.
    """

    found: SchemaVersion
    until_s: float
    schema_file: str | None


@dataclass(frozen=True, slots=True)
class _KeptFailure:
    """A failed lookup, which is not repeated before `until_s` (monotonic)."""

    error: SchemaUnknownError | SchemaUnreachableError
    until_s: float


SchemaAnswer: TypeAlias = KeptVersion | SchemaUnknownError | SchemaUnreachableError | BudgetSpentError
"""SchemaUnknownError: the registry does not have this version, or does not allow us to read it. SchemaUnreachableError:
there is no answer now. BudgetSpentError: it was not looked up.
"""


class SchemaRegistry:
    """Looks up schema versions, and keeps them. `write_file` writes a definition into a file for children, by version
    id, and returns its path or None; it blocks, so it is called through `in_thread`.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock,
        *,
        write_file: Callable[[str, str], str | None],
        size: int = VERSIONS_MAX,
        in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread,
    ) -> None:
        """Make a registry that knows no version yet, and keeps at most `size` versions."""
        self._in_thread = in_thread
        self._service = service
        self._clock = clock
        self._size = size
        self._write_file = write_file
        self._kept: OrderedDict[str, KeptVersion] = OrderedDict()
        self._failed: OrderedDict[str, _KeptFailure] = OrderedDict()
        self._asking: dict[str, asyncio.Task[SchemaAnswer]] = {}

    async def versions(
        self, version_ids: Sequence[str], budget: RecordBudget, wait_s: float
    ) -> dict[str, SchemaAnswer]:
        """Return an answer for each of the ids, within `wait_s` seconds. Those that are not kept are looked up in this
        order, several at once, and `budget` pays for it. If the time is over, a version that was found earlier is the
        answer, even if it is too old.
        """
        answers: dict[str, SchemaAnswer] = {}
        missing = []
        for version_id in version_ids:
            if (kept := self._fresh(version_id)) is None:
                missing.append(version_id)
            else:
                answers[version_id] = kept
        if not missing:
            return answers
        if wait_s > 0:
            waiting = iter(missing)  # shared by the askers, so that each id is taken by only one of them
            askers = (self._ask(waiting, answers, budget) for _ in range(min(LOOKUPS_AT_ONCE_MAX, len(missing))))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await asyncio.gather(*askers)
        for version_id in missing:
            if version_id not in answers:
                late = SchemaUnreachableError("its page has waited long enough for the schema registry")
                answers[version_id] = self._kept.get(version_id, late)
        return answers

    def _fresh(self, version_id: str) -> SchemaAnswer | None:
        """Return what is known of a version and still counts; None if the version has to be looked up."""
        now = self._clock.monotonic()
        kept = self._kept.get(version_id)
        if kept is not None:
            self._kept.move_to_end(version_id)
            return kept if now < kept.until_s else None
        failure = self._failed.get(version_id)
        return failure.error if failure is not None and now < failure.until_s else None

    async def _ask(self, waiting: Iterator[str], answers: dict[str, SchemaAnswer], budget: RecordBudget) -> None:
        """Look up one of the waiting ids after the other, until none waits, and put each answer into `answers`. If the
        budget of the shard is spent, a version that was found earlier is the answer, even if it is too old.
        """
        for version_id in waiting:
            if version_id not in self._asking and not budget.allows():
                spent = BudgetSpentError("it is not looked up: records of this shard name too many schema versions")
                answers[version_id] = self._kept.get(version_id, spent)
                continue
            answers[version_id] = await asyncio.shield(self._lookup(version_id, budget))

    def _lookup(self, version_id: str, budget: RecordBudget) -> asyncio.Task[SchemaAnswer]:
        """Return the lookup that is under way; begin one if there is none."""
        if version_id not in self._asking:
            budget.charge()
            task = asyncio.create_task(self._look_up_and_keep(version_id, budget))
            self._asking[version_id] = task
            task.add_done_callback(lambda _: self._asking.pop(version_id, None))
        return self._asking[version_id]

    async def _look_up_and_keep(self, version_id: str, budget: RecordBudget) -> SchemaAnswer:
        """Look up a version, and keep the result or the failure. If there is no answer, keep a version that was found
        earlier, because versions do not change.
        """
        try:
            kept = await self._look_up(version_id)
        except (SchemaUnknownError, SchemaUnreachableError) as error:
            budget.charge(LOOKUP_WITHOUT_RESULT - 1.0)  # such a lookup costs more; 1 was charged when it began
            is_unknown = isinstance(error, SchemaUnknownError)
            until_s = self._clock.monotonic() + (NEGATIVE_S if is_unknown else NO_ANSWER_S)
            known = self._kept.get(version_id)
            if known is not None and not is_unknown:
                self._kept[version_id] = again = replace(known, until_s=until_s)
                return again
            self._kept.pop(version_id, None)
            failure = type(error)(str(error))  # without the traceback, which would be kept, too
            _keep(self._failed, version_id, _KeptFailure(failure, until_s), FAILURES_KEPT_MAX)
            return failure
        self._failed.pop(version_id, None)
        _keep(self._kept, version_id, kept, self._size)
        return kept

    async def _look_up(self, version_id: str) -> KeptVersion:
        """Ask the registry, and write the definition into a file. Raises SchemaUnknownError, SchemaUnreachableError."""
        now = self._clock.monotonic()
        try:
            answer = await self._service.call("GetSchemaVersion", {"SchemaVersionId": version_id}, timeout_s=TIMEOUT_S)
            found = version_of(version_id, answer)
            file = await self._in_thread(self._write_file, version_id, found.definition)
            kept = KeptVersion(found, now + KEPT_S, file)
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
        except Exception as error:
            raise SchemaUnreachableError(str(survived(error, "looking up a schema version"))) from error
        return kept

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
