"""What a reader hands to the consumer of its shard, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from mld.streams import ChildShard, Page


@dataclass(frozen=True, slots=True)
class Records:
    """The next page, possibly an empty one: it still says how far behind the reader is."""

    page: Page


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Every record was delivered, also those of the answer that ended the shard. Nothing follows.

    `children` is empty if Kinesis kept ending the shard without naming them: look them up in the listing.
    """

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class ShardMissing:
    """Kinesis says ResourceNotFound: past retention, stream deleted, or the wrong stream. Never an end by itself.

    Asking the reader for the next delivery makes it try again, from where it was.
    """


Delivery = Records | EndOfShard | ShardMissing
