"""`TableStreams`: the streams of all DynamoDB tables, in all accounts and regions. Pure.

Limits of throughput are enforced only if `enforce` is set.
"""

from __future__ import annotations

from collections.abc import Sequence

from mld.local.change_stream import DynamoStreamsError, TableStream, not_found
from mld.local.item_changes import ItemChange, TableStreamKey, ViewType
from mld.local.shard_limits import Bucket


class TableStreams:
    """All streams. `enforce` and `stretch_pages` may be changed at any time.

    Before each page with records, and before the last page of a closed shard, GetRecords returns `stretch_pages` pages
    without records. The real service returns such pages for the parts of a shard in which no items changed.
    """

    def __init__(self, *, enforce: bool = False) -> None:
        self.enforce = enforce
        self.stretch_pages = 0
        self._streams: dict[str, TableStream] = {}

    def enable(
        self, key: TableStreamKey, view: ViewType, key_schema: Sequence[dict[str, str]], *, now: float
    ) -> TableStream:
        """Begin the stream of a table, and return it. If it exists already, it stays as it is."""
        return self._streams.setdefault(key.arn, TableStream(key, view, key_schema, now))

    def disable(self, arn: str, *, now: float) -> None:
        """End the stream with this ARN, if there is one that is enabled. It can be read for another day."""
        stream = self._streams.get(arn)
        if stream is not None and stream.is_enabled:
            stream.disable(now)

    def record(self, arn: str, changes: Sequence[ItemChange], *, now: float) -> None:
        """Add the records of these changes to a stream."""
        for change in changes:
            self._streams[arn].record(change, now)

    def all(self, now: float) -> list[TableStream]:
        """Return all streams, sorted by ARN. Those whose retention has ended since they were disabled are removed
        first.
        """
        for arn in [arn for arn, stream in self._streams.items() if stream.is_gone(now)]:
            del self._streams[arn]
        return [self._streams[arn] for arn in sorted(self._streams)]

    def stream(self, arn: str, now: float, region: str | None = None) -> TableStream:
        """Return the stream with this ARN, if it belongs to `region` (None: any). Raises ResourceNotFound."""
        found = self._streams.get(arn)
        if found is None or found.is_gone(now) or region not in (None, found.key.region):
            raise not_found(f"Stream: {arn} not found")
        return found

    def newest_of(self, table: str, now: float) -> TableStream:
        """Return the newest stream of a table with this name, in any account and region. Raises ResourceNotFound."""
        found = [s for s in self.all(now) if s.key.table == table]
        if not found:
            raise not_found(f"Stream: of table {table} not found")
        return max(found, key=lambda stream: stream.created_s)

    def admit(self, bucket: Bucket, what: str, now: float) -> None:
        """Count one call. Raises LimitExceeded if limits are enforced and `bucket` is empty. `what` names the call."""
        if not self.enforce:
            return
        if not bucket.has(1, now):
            raise DynamoStreamsError("LimitExceededException", f"Rate exceeded for {what}")
        bucket.take(1)
