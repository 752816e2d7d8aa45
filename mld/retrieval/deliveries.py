"""What a reader delivers to the consumer of its shard."""

from __future__ import annotations

from dataclasses import dataclass

from mld.streams import ChildShard, Page


@dataclass(frozen=True, slots=True)
class Records:
    """The next page. It may be empty, and still says how far the reader lags."""

    page: Page


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Every record was delivered, also those of the answer that ended the shard. Nothing follows.

    `children` is empty if Kinesis ended the shard again and again without naming them: look them up in the listing.
    """

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """Kinesis says ResourceNotFound: past retention, stream deleted, or the wrong stream. Never an end by itself.

    Asked for the next delivery, the reader tries again from the same place.
    """


Delivery = Records | EndOfShard | ShardMissing
