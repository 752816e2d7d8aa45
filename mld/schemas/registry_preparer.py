"""`RegistryPreparer`: the `SchemaPreparer` of a daemon, which takes schema frames off records before a child gets them.

It makes from the settings what a `SchemaPreparer` needs: the client of the Glue Schema Registry, the store of versions
that were looked up, and the process that decodes payloads. It opens and closes them.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from mld.aws.client_factory import ClientFactory
from mld.aws.counted_service import CountedService
from mld.aws.service_factory import service_of
from mld.core.clock import Clock
from mld.metrics.worker import WorkerMetrics
from mld.properties.settings import Settings
from mld.properties.values import SchemaErrors, SchemaMode
from mld.schemas.decoder_process import DecoderProcess
from mld.schemas.definition_files import DefinitionFiles
from mld.schemas.preparer import SchemaPreparer
from mld.schemas.registry import LOOKUPS_AT_ONCE_MAX, TIMEOUT_S, SchemaRegistry


class RegistryPreparer(SchemaPreparer):
    """A `SchemaPreparer` made from settings. The daemon opens it at its start and closes it at its end."""

    def __init__(self, settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics) -> None:
        """Make the preparer without any I/O. It must be opened before use."""
        wanted = settings.schemas
        glue = service_of(
            factory,
            "glue",
            label="schema registry",
            threads_max=LOOKUPS_AT_ONCE_MAX,
            read_timeout_s=TIMEOUT_S,
            access=factory.access_as_kinesis(None, None),  # the region of Kinesis, and the usual endpoint of Glue
        )
        self._service = CountedService(glue, "glue", worker)
        self._decoder = DecoderProcess()
        self._files = DefinitionFiles(Path(tempfile.gettempdir()))
        super().__init__(
            SchemaRegistry(self._service, clock, write_file=self._files.write),
            clock,
            wanted.mode,
            self._decoder.decode,
            waits=wanted.on_error is SchemaErrors.FAIL,
            results=worker.framed_records,
        )

    async def open(self) -> None:
        """Open the client of the registry, and remove what killed daemons left. Raises StartupError if there are no
        credentials or no region.
        """
        await asyncio.gather(self._service.open(), asyncio.to_thread(self._files.sweep))

    async def close(self) -> None:
        """End the decoder, all lookups under way, and the client, and remove the definitions."""
        self._decoder.close()
        await self._registry.close()
        await self._service.close()
        await asyncio.to_thread(self._files.close)


def registry_of(
    settings: Settings, factory: ClientFactory, clock: Clock, worker: WorkerMetrics
) -> RegistryPreparer | None:
    """Return a preparer, not open yet; None if the settings leave frames on records. It does no I/O."""
    return None if settings.schemas.mode is SchemaMode.OFF else RegistryPreparer(settings, factory, clock, worker)
