"""Makes what the settings ask for: the registry's client, its cache, and what takes frames off records."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from mld.aws.beside import beside_service
from mld.aws.client_factory import ClientFactory
from mld.aws.counted import CountedService
from mld.clock import Clock
from mld.metrics.registry import WorkerMetrics
from mld.schemas.compiling import compiled_proto, is_compiler_there
from mld.schemas.decoding import SchemaRules
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import TIMEOUT_S, SchemaRegistry
from properties.remarks import Level, Remark
from properties.settings import Settings
from properties.values import SchemaErrors, SchemaMode

LOOKUPS_AT_ONCE_MAX = 4


class OpenedRegistry:
    """Opened and closed with the daemon. `preparer` is for the consumers."""

    def __init__(self, service: CountedService, registry: SchemaRegistry, preparer: SchemaPreparer) -> None:
        self._service = service
        self._registry = registry
        self.preparer = preparer

    async def open(self) -> None:
        """Raises StartupError without credentials or a region."""
        await self._service.open()

    async def close(self) -> None:
        await self._registry.close()
        await self._service.close()


def registry_of(
    settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics
) -> OpenedRegistry | None:
    """Not open yet; None if frames stay on records. Does no I/O."""
    if settings.schema_registry is SchemaMode.OFF:
        return None

    glue = beside_service(
        factory,
        "glue",
        settings.schema_registry_region,
        settings.schema_registry_endpoint,
        label="schema registry",
        timeout_s=TIMEOUT_S,
        threads_max=LOOKUPS_AT_ONCE_MAX,
    )
    service = CountedService(glue, "glue", worker)
    given = settings.schema_registry_directory
    folder = Path(tempfile.gettempdir()) / f"mld-schemas-{os.getuid()}" if given is None else Path(given)
    registry = SchemaRegistry(
        service,
        clock,
        size=settings.schema_registry_cache_size,
        keep_s=settings.schema_registry_time_to_live_millis / 1000,
        folder=folder,
        compiled=compiled_proto if settings.schema_registry is SchemaMode.JSON and is_compiler_there() else None,
    )
    rules = SchemaRules(settings.schema_registry, settings.schema_registry_inline, settings.schema_registry_validate)
    waits = settings.schema_registry_on_error is SchemaErrors.FAIL
    return OpenedRegistry(
        service, registry, SchemaPreparer(registry, clock, rules, waits=waits, results=worker.framed_records)
    )


def missing_codecs(settings: Settings, file_name: str) -> list[Remark]:
    """An error for a mode whose package is not installed."""
    needed = []
    if settings.schema_registry is SchemaMode.JSON:
        needed.append(("mld.schemaRegistry", "fastavro", "json needs a package that is not installed"))
    if settings.schema_registry is not SchemaMode.OFF and settings.schema_registry_validate:
        needed.append(("mld.schemaRegistry.validate", "jsonschema", "needs a package that is not installed"))
    return [
        Remark(Level.ERROR, key, file_name, f"{why} ({module})", "pip install 'mld[schemas]'")
        for key, module, why in needed
        if find_spec(module) is None
    ]
