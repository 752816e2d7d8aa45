"""A table of AWS Glue: made, widened, and told of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mld.processors.spark.catalog import table as shapes
from mld.processors.spark.catalog.table import CatalogTableError, Columns, Table

BATCH_MAX = 100
"""Partitions of one BatchCreatePartition, by the AWS API."""
EXISTS = "AlreadyExistsException"
NOT_THERE = "EntityNotFoundException"
RACES_MAX = 5
"""Attempts against others who change the table at the same time."""
RACED = frozenset((EXISTS, "ConcurrentModificationException", "VersionMismatchException"))


class GlueTable:
    """`client` makes a client of Glue when it is first needed. Raises CatalogTableError, and botocore's errors."""

    def __init__(self, table: Table, client: Callable[[], Any]) -> None:
        self.name = f"{table.database}.{table.name}"
        self._table = table
        self._make = client
        self._client: Any = None
        self._described: list[dict[str, str]] = []

    def shape(self, columns: Columns) -> None:
        for _ in range(RACES_MAX):
            try:
                self._shape_once(columns)
                return
            except Exception as error:
                if _code(error) not in RACED:
                    raise
                last = error
        raise last

    def add(self, directories: Sequence[str]) -> None:
        glue = self._glue()
        if not self._described:
            self._described = self._existing()["StorageDescriptor"]["Columns"]
        for at in range(0, len(directories), BATCH_MAX):
            inputs = [
                shapes.partition_input(self._table, self._described, one) for one in directories[at : at + BATCH_MAX]
            ]
            answer = glue.batch_create_partition(**self._names(), PartitionInputList=inputs)
            for failed in answer.get("Errors") or ():
                detail = failed.get("ErrorDetail") or {}
                if detail.get("ErrorCode") != EXISTS:
                    raise CatalogTableError(
                        f"the partition {failed.get('PartitionValues')}: {detail.get('ErrorCode')}: "
                        f"{detail.get('ErrorMessage')}"
                    )

    def _shape_once(self, columns: Columns) -> None:
        glue = self._glue()
        try:
            existing = self._existing()
        except Exception as error:
            if _code(error) != NOT_THERE:
                raise
            self._create(shapes.table_input(self._table, columns))
            return
        shapes.check_existing(self._table, existing)
        wider = shapes.widened(existing, self._table, columns)
        if wider is not None:
            version = {"VersionId": existing["VersionId"]} if existing.get("VersionId") else {}
            glue.update_table(DatabaseName=self._table.database, TableInput=wider, **version)
        self._described = (wider or existing)["StorageDescriptor"]["Columns"]

    def _create(self, wanted: dict[str, Any]) -> None:
        try:
            self._glue().create_table(DatabaseName=self._table.database, TableInput=wanted)
        except Exception as error:
            if _code(error) == NOT_THERE:
                raise CatalogTableError(f"there is no database {self._table.database} in Glue; create it") from error
            raise
        self._described = wanted["StorageDescriptor"]["Columns"]

    def _existing(self) -> dict[str, Any]:
        found: dict[str, Any] = self._glue().get_table(DatabaseName=self._table.database, Name=self._table.name)[
            "Table"
        ]
        return found

    def _names(self) -> dict[str, str]:
        return {"DatabaseName": self._table.database, "TableName": self._table.name}

    def _glue(self) -> Any:
        if self._client is None:
            self._client = self._make()
        return self._client


def _code(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
