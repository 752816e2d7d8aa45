"""The tables of a `MemoryDynamo`: items by hash key, and global secondary indexes that lag behind.

Items are values: a change puts a new one in the place of the old one. Times are on the service's clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.twins.dynamo_expressions import Item, ValidationError

ARN = "arn:aws:dynamodb:us-east-1:123456789012:table/"


@dataclass(slots=True)
class Index:
    """A global secondary index: sparse, eventually consistent, changes of one item in their order."""

    description: dict[str, Any]
    made_at: float
    ready_at: float
    gone_at: float | None = None
    _shown: dict[str, Item] = field(default_factory=dict)
    _coming: list[tuple[float, int, str, Item]] = field(default_factory=list)
    _shown_at: dict[str, float] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    keys: tuple[str, ...] = field(init=False)
    """Hash and, if there is one, range attribute."""

    def __post_init__(self) -> None:
        self.keys = tuple(part["AttributeName"] for part in self.description["KeySchema"])

    def change(self, key: str, item: Item, at: float) -> None:
        """The table's item at `key` is `item` now ({}: none); the index shows it from `at`, never out of order."""
        at = max(at, self._shown_at.get(key, at))
        self._shown_at[key] = at
        heapq.heappush(self._coming, (at, next(self._numbers), key, item))

    def items(self, now: float) -> dict[str, Item]:
        """What the index shows now, by the table's key."""
        while self._coming and self._coming[0][0] <= now:
            _, _, key, item = heapq.heappop(self._coming)
            if all(name in item for name in self.keys):
                self._shown[key] = item
            else:
                self._shown.pop(key, None)
        return self._shown

    def status(self, now: float) -> str:
        if self.gone_at is not None:
            return "DELETING"
        return "ACTIVE" if now >= self.ready_at else "CREATING"

    def is_allocating(self, now: float) -> bool:
        """The first half of its creation; the second half is backfilling."""
        return self.gone_at is not None or now < (self.made_at + self.ready_at) / 2

    def entry(self, item: Item, table_key: str) -> Item:
        """What the index holds of an item; {} if the item is not in it."""
        return self.projected(item, table_key) if all(name in item for name in self.keys) else {}

    def projected(self, item: Item, table_key: str) -> Item:
        projection = self.description.get("Projection", {})
        if projection.get("ProjectionType", "ALL") == "ALL":
            return item
        wanted = {table_key, *self.keys, *projection.get("NonKeyAttributes", ())}
        return {name: value for name, value in item.items() if name in wanted}


@dataclass(slots=True)
class Table:
    """One table. `change` is the only way to an item."""

    name: str
    key: str
    description: dict[str, Any]
    active_at: float
    items: dict[str, Item] = field(default_factory=dict)
    indexes: dict[str, Index] = field(default_factory=dict)
    recovery: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    def change(self, key: str, item: Item, now: float, lag_s: float) -> None:
        """Put `item` at `key`; {} deletes. The indexes follow after `lag_s`."""
        if item:
            self.items[key] = item
        else:
            self.items.pop(key, None)
        for index in self.indexes.values():
            index.change(key, item, now + lag_s)

    def check_index_keys(self, item: Item) -> None:
        """DynamoDB refuses a write whose index key has another type than declared, or is empty."""
        if not self.indexes:
            return
        for name in {name for index in self.indexes.values() for name in index.keys}:
            value = item.get(name)
            if value is None:
                continue
            kind = self._kind_of(name)
            if kind not in value or not value[kind]:
                raise ValidationError(f"Type mismatch or empty value for Index Key {name}: {value}")

    def _kind_of(self, name: str) -> str:
        parts = self.description["AttributeDefinitions"]
        return next(str(part["AttributeType"]) for part in parts if part["AttributeName"] == name)

    def key_of(self, given: Mapping[str, Any]) -> str:
        """The hash key in a request's Key, of which nothing else may be a part."""
        if len(given) != 1:
            raise ValidationError("The provided key element does not match the schema")
        return self.key_in(given)

    def key_in(self, item: Mapping[str, Any]) -> str:
        value = item.get(self.key, {})
        if "S" not in value:
            raise ValidationError("The provided key element does not match the schema")
        if not value["S"]:
            raise ValidationError("empty key")
        return str(value["S"])

    def is_active(self, now: float) -> bool:
        return now >= self.active_at

    def find_index(self, name: str, now: float) -> Index | None:
        """An index, unless its deletion has ended."""
        index = self.indexes.get(name)
        if index is not None and index.gone_at is not None and now >= index.gone_at:
            del self.indexes[name]
            return None
        return index

    def live_indexes(self, now: float) -> list[Index]:
        return [index for name in list(self.indexes) if (index := self.find_index(name, now)) is not None]

    def described(self, now: float) -> dict[str, Any]:
        """As DescribeTable shows it."""
        indexes = self.live_indexes(now)
        status = "UPDATING" if any(index.is_allocating(now) for index in indexes) else "ACTIVE"
        if not self.is_active(now):
            status = "CREATING"
        shown = self.description | {"TableName": self.name, "TableStatus": status, "TableArn": ARN + self.name}
        shown["ItemCount"] = len(self.items)
        if indexes:
            shown["GlobalSecondaryIndexes"] = [_described(index, now) for index in indexes]
        return shown


def _described(index: Index, now: float) -> dict[str, Any]:
    status = index.status(now)
    shown = index.description | {"IndexStatus": status, "ItemCount": len(index.items(now))}
    return shown | {"Backfilling": not index.is_allocating(now)} if status == "CREATING" else shown


def new_table(params: Mapping[str, Any], active_at: float) -> Table:
    """The table that a CreateTable asks for. Only text hash keys, and no range keys, are known here."""
    kinds = {part["AttributeName"]: part["AttributeType"] for part in params["AttributeDefinitions"]}
    schema = params["KeySchema"]
    if [part["KeyType"] for part in schema] != ["HASH"] or kinds.get(schema[0]["AttributeName"]) != "S":
        raise ValidationError("the twin has tables with one hash key of type S only")
    unsaid = ("Tags", "GlobalSecondaryIndexes")
    description = {name: value for name, value in params.items() if name not in unsaid} | {"TableSizeBytes": 0}
    if params.get("BillingMode", "PROVISIONED") == "PAY_PER_REQUEST":
        description["BillingModeSummary"] = {"BillingMode": "PAY_PER_REQUEST"}
        description["ProvisionedThroughput"] = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0}
    elif "ProvisionedThroughput" not in params:
        raise ValidationError("No provisioned throughput specified for the table")
    table = Table(params["TableName"], schema[0]["AttributeName"], description, active_at)
    table.tags = {tag["Key"]: tag["Value"] for tag in params.get("Tags", ())}
    for wanted in params.get("GlobalSecondaryIndexes", ()):
        add_index(table, wanted, params["AttributeDefinitions"], active_at, active_at)
    used = {table.key} | {name for index in table.indexes.values() for name in index.keys}
    if set(kinds) != used:
        raise ValidationError(f"attribute definitions {sorted(kinds)} for keys {sorted(used)}")
    return table


def add_index(
    table: Table, wanted: Mapping[str, Any], definitions: list[dict[str, Any]], now: float, ready_at: float
) -> None:
    """An index that shows the table as it is now, and then its changes; readable from `ready_at`."""
    index = Index(dict(wanted), now, ready_at)
    declared = {part["AttributeName"]: part for part in [*table.description["AttributeDefinitions"], *definitions]}
    if not set(index.keys) <= set(declared):
        raise ValidationError("some index key attributes have no attribute definition")
    on_demand = "BillingModeSummary" in table.description
    if on_demand is ("ProvisionedThroughput" in wanted):
        raise ValidationError("an index has provisioned throughput exactly if its table has")
    table.description["AttributeDefinitions"] = list(declared.values())
    for key, item in table.items.items():
        index.change(key, item, now)
    table.indexes[wanted["IndexName"]] = index
