"""Makes what the settings ask for: the registry's client, its cache, and what takes frames off records."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mld import pip_install
from mld.aws.client import occasional_service
from mld.aws.client_factory import ClientFactory
from mld.aws.counted import CountedService
from mld.core.clock import Clock
from mld.core.extras import is_installed
from mld.metrics.worker import WorkerMetrics
from mld.properties.remarks import Level, Remark
from mld.properties.settings import Settings
from mld.properties.values import SchemaErrors, SchemaMode
from mld.schemas.decoder_process import DecoderProcess
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import TIMEOUT_S, SchemaRegistry

LOOKUPS_AT_ONCE_MAX = 4


class OpenedRegistry:
    """Opened and closed with the daemon. `preparer` is for the consumers."""

    def __init__(
        self, service: CountedService, registry: SchemaRegistry, decoder: DecoderProcess, preparer: SchemaPreparer
    ) -> None:
        self._service = service
        self._registry = registry
        self._decoder = decoder
        self.preparer = preparer

    async def open(self) -> None:
        """Open the client. Raises StartupError without credentials or a region."""
        await self._service.open()

    async def close(self) -> None:
        self._decoder.close()
        await self._registry.close()
        await self._service.close()


def registry_of(
    settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics
) -> OpenedRegistry | None:
    """Make it, not open yet; None if frames stay on records. Does no I/O."""
    if settings.schemas.mode is SchemaMode.OFF:
        return None

    glue = occasional_service(
        factory,
        "glue",
        settings.schemas.region,
        settings.schemas.endpoint,
        label="schema registry",
        timeout_s=TIMEOUT_S,
        threads_max=LOOKUPS_AT_ONCE_MAX,
    )
    service = CountedService(glue, "glue", worker)
    folder = Path(tempfile.gettempdir()) / f"mld-schemas-{os.getuid()}"
    registry = SchemaRegistry(service, clock, folder=folder)
    decoder = DecoderProcess()
    preparer = SchemaPreparer(
        registry,
        clock,
        settings.schemas.mode,
        decoder.decode,
        waits=settings.schemas.on_error is SchemaErrors.FAIL,
        results=worker.framed_records,
    )
    return OpenedRegistry(service, registry, decoder, preparer)


def missing_codecs(settings: Settings, file_name: str) -> list[Remark]:
    """Return an error for a mode whose package is not installed."""
    if settings.schemas.mode is not SchemaMode.JSON or is_installed("fastavro"):
        return []
    why = "json needs a package that is not installed (fastavro)"
    return [Remark(Level.ERROR, "mld.schemaRegistry", file_name, why, pip_install("schemas"))]
