"""Tables of a DynamoDB, real or in memory, as another program makes, reads and writes them."""

from __future__ import annotations

import itertools
from typing import Any

from mld.aws.service import Service

Row = dict[str, dict[str, Any]]
_numbers = itertools.count(1)


def unique_table() -> str:
    """A name that no other test of this process has."""
    return f"table-{next(_numbers)}"


async def make_table(service: Service, table: str, key: str) -> None:
    """An on-demand table with the string hash key `key`."""
    await service.call(
        "CreateTable",
        {
            "TableName": table,
            "AttributeDefinitions": [{"AttributeName": key, "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": key, "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        },
    )


class RawRows:
    """The rows of one table."""

    def __init__(self, service: Service, table: str, key: str = "leaseKey") -> None:
        self._service = service
        self._table = table
        self._key = key

    async def put(self, row: Row) -> None:
        await self._service.call("PutItem", {"TableName": self._table, "Item": row})

    async def get(self, key: str) -> Row | None:
        params = {"TableName": self._table, "Key": {self._key: {"S": key}}, "ConsistentRead": True}
        item: Row | None = (await self._service.call("GetItem", params)).get("Item")
        return item

    async def there(self, key: str) -> Row:
        row = await self.get(key)
        assert row is not None
        return row
