"""The commands that print: the table, the deliveries, the children, the log."""

from __future__ import annotations

import logging
import re
from itertools import groupby, pairwise
from typing import Any

from mld.fleet.leader.lock import LOCK_KEY
from mld.fleet.migrate.states import CLIENT_VERSION, TABLE_MIGRATION
from mld.leases.rows import LEASE_TABLE_KEY
from tests.scenarios.conditions import place
from tests.scenarios.naming import full, shard_list, short
from tests.scenarios.world import LEGACY, Line, StoryWorld
from tests.support.fleet import TABLE


class Reports:
    """Half of a story's commands; see `commands`."""

    def __init__(self) -> None:
        self.world = StoryWorld()
        self._deliveries_told = 0
        self._reads_told: dict[int, float] = {}
        self._calls_told_at = 0.0

    def do_leases(self, words: list[str]) -> list[str]:
        """leases: the lease table."""
        table = [("lease", "owner", "checkpoint", "")]
        for key, row in self.world.rows().items():
            if row is None:
                table.append((short(key), "?", "?", "cannot be read"))
                continue
            family = [f"{what} {shard_list(who)}" for what, who in (("of", row.parents), ("into", row.children)) if who]
            if row.checkpoint_owner is not None:
                family.append(f"on its way from {row.checkpoint_owner}")
            table.append((short(key), row.owner or "-", place(self.world, row), ", ".join(family)))
        if len(table) == 1:
            return ["no rows"]
        return _columns(table)

    def do_attributes(self, words: list[str]) -> list[str]:
        """attributes shard-0: what its row has."""
        return [", ".join(sorted(self.world.dynamo.row(TABLE, full(words[0])) or ()))]

    def do_fleet(self, words: list[str]) -> list[str]:
        """fleet: the rows beside the leases: client version and who set it, leader, table migration, reports."""
        world = self.world
        version, lock, tables = (world.fleet_row(key) for key in (CLIENT_VERSION.key, LOCK_KEY, TABLE_MIGRATION.key))

        def legacy(row: Any) -> str:
            return "" if LEASE_TABLE_KEY in row else LEGACY

        by = version and f"version {version['cv']['S']} by {version['mb']['S']}{legacy(version)}"
        leader = lock and f"leader {lock['ownerName']['S']}{legacy(lock)}"
        migration = [f"{tables['tm']['S']} by {tables['mb']['S']}{legacy(tables)}"] if tables else []
        return [by or "no version", leader or "no leader", *migration, *world.reporting()]

    def do_loads(self, words: list[str]) -> list[str]:
        """loads: how many workers own how many leases."""
        loads = {m.worker_id: 0 for m in self.world.machines.values() if m.is_up}
        for row in self.world.rows().values():
            owner = row.owner if row is not None else None
            loads[owner or "nobody"] = loads.get(owner or "nobody", 0) + 1
        nobody = loads.pop("nobody", 0)
        shares = sorted(loads.values(), reverse=True)
        lines = [f"{_count(len(list(same)), 'worker')} own {count}" for count, same in groupby(shares)]
        return [line.replace("1 worker own", "1 worker owns") for line in lines] + (
            [f"nobody owns {nobody}"] if nobody else []
        )

    def do_deliveries(self, words: list[str]) -> list[str]:
        """deliveries: what each child got since the last time this was asked."""
        got: dict[int, list[int]] = {}
        world = self.world
        new, self._deliveries_told = world.deliveries[self._deliveries_told :], len(world.deliveries)
        for life, records in new:
            got.setdefault(life.number, []).extend(records)
        return [
            f"child {number} ({world.troupe.lives[number - 1].place}): {_records(records)}"
            for number, records in sorted(got.items())
        ] or ["none"]

    def do_delivered(self, words: list[str]) -> list[str]:
        """delivered: all in all."""
        wanted = [record for record in self.world.records if record.wanted]
        some = sum(record.delivered_at_s is not None for record in wanted)
        again = sum(record.deliveries > 1 for record in wanted)
        return [f"{some} of {len(wanted)} records, {again} of them more than once"]

    def do_children(self, words: list[str]) -> list[str]:
        """children: every child so far, what it was told, and the errors its checkpoints got."""
        lines = []
        for life in self.world.troupe.lives:
            actions = []
            for action, same in groupby(life.actions):
                count = len(list(same))
                actions.append(f"{count} x processRecords" if action == "processRecords" else action)
            errors = [f"{count} x {name}" for name, count in sorted(life.errors.items())]
            state = "" if life.living else "  (ended)"
            lines.append(f"child {life.number} ({life.place}): {', '.join(actions)}{state}")
            lines += [f"    checkpoint errors: {', '.join(errors)}"] if errors else []
        return lines or ["none"]

    def do_log(self, words: list[str]) -> list[str]:
        """log [w1] [action …]: what workers logged and was not shown yet, or some of it; alike lines are joined."""
        workers = {word for word in words if word in self.world.machines}
        actions = set(words) - workers
        chosen = [
            line
            for line in self.world.journal.lines
            if (not workers or line.worker in workers) and (not actions or line.action in actions)
        ]
        self.world.journal.forget(chosen)
        chosen.sort(key=lambda line: (round(line.at_s, 1), line.worker))
        joined: dict[tuple[str, str, int, str], list[Line]] = {}
        for line in chosen:
            joined.setdefault(_log_key(line), []).append(line)
        return [_log_text(same) for same in joined.values()] or ["nothing"]

    def do_skip_log(self, words: list[str]) -> list[str]:
        """skip log: what was logged so far is of no interest."""
        self.world.journal.lines.clear()
        return []

    def do_reads(self, words: list[str]) -> list[str]:
        """reads shard-0: the seconds between the reads of a shard since the last time this was asked."""
        index = int(words[0].removeprefix("shard-"))
        since = self._reads_told.get(index, -1.0)
        times = [at for at, _, shard in self.world.network.reads if shard == index and at >= since]
        self._reads_told[index] = times[-1] if times else since
        gaps = [f"{b - a:.1f}" for a, b in pairwise(times)]
        return [" ".join(f"{len(run)} x {gap}" for gap, same in groupby(gaps) if (run := list(same))) or "none"]

    def do_calls(self, words: list[str]) -> list[str]:
        """calls: requests since the last time, all workers together."""
        calls, now = self.world.network.calls, self.world.clock.monotonic()
        lines = [f"{service} {operation}: {count}" for (service, operation), count in sorted(calls.items())]
        elapsed = now - self._calls_told_at
        self._calls_told_at = now
        calls.clear()
        return [f"in {elapsed:.0f} s:", *lines]

    def do_time(self, words: list[str]) -> list[str]:
        """time: seconds since the story began."""
        return [f"{self.world.clock.monotonic():.1f} s"]


def _columns(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _records(numbers: list[int]) -> str:
    return (
        f"{_count(len(numbers), 'record')}, #{numbers[0]} to #{numbers[-1]}" if len(numbers) > 1 else f"#{numbers[0]}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _log_key(line: Line) -> tuple[str, str, int, str]:
    return (f"{line.at_s:.1f}", line.worker, line.level, line.text.replace(line.shard, "") if line.shard else line.text)


def _log_text(same: list[Line]) -> str:
    first = same[0]
    level = f"{logging.getLevelName(first.level)}: " if first.level >= logging.WARNING else ""
    shards = {line.shard for line in same if line.shard}
    text = first.text
    if shards and first.shard in text:
        text = re.sub(rf"\b{first.shard}\b", shard_list(shards), text, count=1)
    elif shards:
        text += f" ({shard_list(shards)})"
    return f"{first.at_s:6.1f}  {first.worker}  {level}{text}"
