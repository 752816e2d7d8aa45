"""A pure model of DynamoDB Streams: values and `now` in, values out.

The tables are moto's, and `mld.local.fallback` reports what happens to their items. From that this room makes
streams as the service does: records of one item in order, shards that live four hours and are succeeded by children of
one parent, splits under load, trimming after 24 hours. No clock, no I/O, no randomness. Rules: the API reference of
Amazon DynamoDB Streams; the developer guide, "Change data capture for DynamoDB Streams"; shared terms as in
`mld.local.kinesis`.
"""

from mld.local.dynamo_streams.model import TableStreams
from mld.local.dynamo_streams.table_stream import DynamoStreamsError, ItemChange, TableStreamKey, ViewType

__all__ = ["TableStreams", "DynamoStreamsError", "ItemChange", "TableStreamKey", "ViewType"]
