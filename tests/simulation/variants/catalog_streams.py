"""The variants of several streams. Their plans are those of mode `multi-stream`."""

from __future__ import annotations

from tests.simulation.variants.patching import Patch
from tests.simulation.variants.variant import Variant


def _variant(name: str, breaks: str, *patches: tuple[str, str, str], needs: str = "") -> Variant:
    found = tuple(Patch(f"mld.{module}", old, new) for module, old, new in patches)
    return Variant(name, breaks, found, needs, "multi-stream")


VARIANTS_STREAMS: tuple[Variant, ...] = (
    _variant(
        "remade_stream_keeps_its_epoch",
        "a stream that was deleted and made again keeps the epoch, and so the rows, of the one before it",
        (
            "tracking.stream_list",
            "    remade = same is not None and None not in (created_ms, same.created_ms) and created_ms != "
            "same.created_ms\n",
            "    remade = False\n",
        ),
    ),
    _variant(
        "former_stream_is_not_remembered",
        "a stream that comes back to the list is not compared with what the list says of it as a former one",
        ("tracking.list_follower", "        known = newest.get(name)\n", "        known = None\n"),
        needs="returns",
    ),
    _variant(
        "wait_of_former_streams_ignored",
        "the leases of a former stream are deleted at once",
        (
            "tracking.stream_list",
            "        one.stream for one in streams.streams if one.former_since_s is not None and "
            "now_s - one.former_since_s >= wait_s\n",
            "        one.stream for one in streams.streams if one.former_since_s is not None\n",
        ),
        (
            "tracking.followed_streams",
            "            if self.follower.seen_former_s(stream) >= wait_s\n",
            "            if True\n",
        ),
    ),
    _variant(
        "deletes_by_its_own_file",
        "each worker deletes the leases of all streams that its own settings do not name",
        (
            "tracking.followed_streams",
            "            for stream in due_for_deletion(self.follower.streams, wait_s, self.needs.clock.wall())\n"
            "            if self.follower.seen_former_s(stream) >= wait_s\n",
            "            for stream in (one.stream for one in self.follower.streams.streams)\n"
            "            if stream.split(':')[1] not in own\n",
        ),
        (
            "tracking.followed_streams",
            "        now, wait_s = self.needs.clock.monotonic(), self.needs.settings.shards.former_streams_wait_s\n",
            "        now, wait_s = self.needs.clock.monotonic(), self.needs.settings.shards.former_streams_wait_s\n"
            "        own = {one.label for one in await self.follower.read_wanted()}\n",
        ),
        (
            "tracking.followed_streams",
            "                if leads and self.needs.settings.shards.former_streams is FormerStreams.DELETE:\n",
            "                if self.needs.settings.shards.former_streams is FormerStreams.DELETE:\n",
        ),
        needs="old lists",
    ),
    _variant(
        "bare_shard_id_is_the_key",
        "the key of a row is the shard's own name, whichever stream it is of",
        ("tracking.stream_rows", "self.table.get(key_of(self.stream, key))", "self.table.get(key)"),
        (
            "leases.writes",
            "key, lease, item = key_of(stream, write.key), write.creates, write.item",
            "key, lease, item = write.key, write.creates, write.item",
        ),
    ),
    _variant(
        "rows_of_other_streams_are_seen",
        "the sync of a stream sees the rows of all streams as its own",
        (
            "tracking.stream_rows",
            "        return (await self.recent.by_stream()).of_stream(self.stream)\n",
            "        rows = (await self.recent.by_stream()).of\n"
            "        return TableScan(tuple(lease for scan in rows.values() for lease in scan.leases))\n",
        ),
    ),
    _variant(
        "former_streams_are_seen_by_the_fleet",
        "the fleet assigns and takes leases of streams that nobody is to consume",
        (
            "tracking.stream_rows",
            "leases=tuple(lease for lease in scan.leases if lease.stream in self.streams))",
            "leases=scan.leases)",
        ),
    ),
    _variant(
        "completed_leases_of_former_streams_are_kept",
        "the lease of a shard that has ended is renewed on, although its stream is a former one",
        (
            "daemon.worker",
            "                self._give_back(holding)  # else it would be renewed",
            "                pass  # it is renewed",
        ),
    ),
)
