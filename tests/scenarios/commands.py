"""The commands of a story.

The first line of each docstring is its manual; `python -m tests.scenarios --help` prints them.
"""

from __future__ import annotations

import asyncio
import re

from mld.core.streams import Shard
from mld.fleet.migrate.states import CLIENT_VERSION, ClientVersion, advanced, item_of, parse_state
from mld.leases.owner_index import INDEX_NAME
from mld.leases.rows import LEASE_TABLE_KEY, Place
from tests.scenarios.children import NAMES, Habit
from tests.scenarios.conditions import condition
from tests.scenarios.decisions import filter_text, parse_graph, sync_text, taker_text
from tests.scenarios.naming import full, numbers, short
from tests.scenarios.reports import Reports
from tests.scenarios.world import StoryError
from tests.simulation.world.loop import in_world
from tests.support.fleet import STREAM, TABLE
from tests.twins.streams import WALL_EPOCH_S

SETTLING_TURNS = 20
_ALIASES = {"failover": "failoverTimeMillis", "position": "initialPositionInStream", "mode": "clientVersionConfig"}
_MODES = {
    "3x": "CLIENT_VERSION_CONFIG_3X",
    "migrating": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X",
    "2x": "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1",
}
_SERVICES = {"dynamo": ("dynamo",), "kinesis": ("kinesis",), "both": ("dynamo", "kinesis")}


def seconds(text: str) -> float:
    """``15s``, ``2m`` or ``200ms`` in seconds."""
    match = re.fullmatch(r"([\d.]+)(ms|s|m|h)", text)
    if match is None:
        raise StoryError(f"not a duration: {text!r} (write 15s, 2m, 200ms)")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def names(words: list[str]) -> list[str]:
    """Worker names; ``w1..w20`` stands for twenty."""
    found: list[str] = []
    for word in words:
        match = re.fullmatch(r"w(\d+)\.\.w(\d+)", word)
        found += [f"w{n}" for n in range(int(match[1]), int(match[2]) + 1)] if match else [word]
    return found


def keys_of(words: list[str]) -> dict[str, str]:
    """key=value words as settings; a value ``@60s`` is that moment of the story in epoch seconds."""
    pairs = dict(word.split("=", 1) for word in words)
    found = {_ALIASES.get(key, key): value for key, value in pairs.items()}
    for key, value in found.items():
        if value.startswith("@"):
            found[key] = str(int(WALL_EPOCH_S + seconds(value[1:])))
        elif key == _ALIASES["mode"]:
            found[key] = _MODES.get(value, value)
        elif key.endswith("Millis") and not value.isdigit():
            found[key] = str(round(seconds(value) * 1000))
    return found


class Commands(Reports):
    """One story's commands; each returns the lines it prints."""

    def __init__(self) -> None:
        super().__init__()
        self._graph: tuple[Shard, ...] = ()
        self._traffic: asyncio.Task[None] | None = None

    async def run(self, line: str) -> list[str]:
        """Carry out one command line. Raises StoryError."""
        words = line.split()
        for length in (2, 1):
            command = getattr(self, "do_" + "_".join(words[:length]).replace("-", "_"), None)
            if command is not None:
                try:
                    result = command(words[length:])
                    return list(await result if asyncio.iscoroutine(result) else result)
                except (ValueError, IndexError, KeyError) as error:
                    raise StoryError(f"cannot read {line!r}: {error!r}") from error
        raise StoryError(f"no such command: {line!r}")

    async def end(self) -> None:
        """Everybody dies, so that no task is made any more."""
        if self._traffic is not None:
            self._traffic.cancel()
        for machine in self.world.machines.values():
            machine.process.kill()
        for _ in range(SETTLING_TURNS):
            await asyncio.sleep(0)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def do_stream(self, words: list[str]) -> list[str]:
        """stream shards=4: create the stream."""
        count = int(words[0].removeprefix("shards="))
        self.world.kinesis.shard_limit = max(count * 2, self.world.kinesis.shard_limit)
        self.world.kinesis.create_stream(STREAM, now=self.world.clock.wall(), shard_count=count)
        return []

    do_recreate_stream = do_stream

    def do_delete_stream(self, words: list[str]) -> list[str]:
        """delete stream: it is gone at once."""
        self.world.kinesis.delete_stream(STREAM, now=self.world.clock.wall())
        return []

    def do_put(self, words: list[str]) -> list[str]:
        """put 100 [aggregated] [to shard-1]: records, to the open shards in turn or to one, or all in one record."""
        count, *rest = words
        aggregated, rest = rest[:1] == ["aggregated"], [word for word in rest if word != "aggregated"]
        shard = full(rest[1]) if rest else None
        if aggregated:
            first = self.world.put_aggregate(int(count), shard)
            put = list(range(first, first + int(count)))
        else:
            put = [self.world.put(shard) for _ in range(int(count))]
        return [f"#{put[0]}..#{put[-1]}" if len(put) > 1 else f"#{put[0]}"]

    def do_traffic(self, words: list[str]) -> list[str]:
        """traffic 10 every 1s, traffic off: records in the background."""
        if self._traffic is not None:
            self._traffic.cancel()
            self._traffic = None
        if words != ["off"]:
            self._traffic = in_world(self._put_for_ever(int(words[0]), seconds(words[2])))
            return []
        return [f"{len(self.world.records)} records so far"]

    async def _put_for_ever(self, count: int, every_s: float) -> None:
        while True:
            for _ in range(count):
                self.world.put()
            await asyncio.sleep(every_s)

    def do_ignore(self, words: list[str]) -> list[str]:
        """ignore #0..#4: the application does not want these (they are older than where it starts)."""
        for number in numbers(words[0]):
            self.world.records[number].wanted = False
        return []

    def do_split(self, words: list[str]) -> list[str]:
        """split shard-0: in the middle."""
        world, parent = self.world, full(words[0])
        shard = world.kinesis.stream(STREAM, world.clock.wall()).shard(parent)
        if shard is None:
            raise StoryError(f"there is no {words[0]}")
        middle = (shard.hash_range.start + shard.hash_range.end) // 2 + 1
        world.kinesis.split_shard(STREAM, parent, middle, now=world.clock.wall())
        return self._children_of(parent)

    def do_merge(self, words: list[str]) -> list[str]:
        """merge shard-0 shard-1: neighbours into one."""
        world = self.world
        world.kinesis.merge_shards(STREAM, full(words[0]), full(words[1]), now=world.clock.wall())
        return self._children_of(full(words[0]))

    def _children_of(self, parent: str) -> list[str]:
        shard = self.world.kinesis.stream(STREAM, self.world.clock.wall()).shard(parent)
        assert shard is not None
        return [f"into {' and '.join(short(child.shard_id) for child in shard.children)}"]

    # --- workers ------------------------------------------------------------------------------------------------------

    def do_settings(self, words: list[str]) -> list[str]:
        """settings key=value …: of all workers started from now on; failover=10s, position=…, mode=3x are short."""
        self.world.keys.update(keys_of(words))
        return []

    def do_worker(self, words: list[str]) -> list[str]:
        """worker w1 key=value …: settings of one worker; id=… is its worker id, else its name."""
        self.world.keys_of[words[0]] = keys_of(words[1:])
        return []

    def do_start(self, words: list[str]) -> list[str]:
        """start w1 [w2 …]: start workers, or start them again after a stop or crash."""
        for name in names(words):
            self.world.start(name)
        return []

    do_restart = do_start

    def do_java(self, words: list[str]) -> list[str]:
        """java j1 3.5 [ahead=5s] [behind=5s] [config=PHASE1] [load=5] [migrate=true]: a Java worker of 2.x to 3.5."""
        more = dict(word.split("=") for word in words[2:])
        ahead_s = seconds(more.get("ahead", "0s")) - seconds(more.get("behind", "0s"))
        load = float(more["load"]) if "load" in more else None
        config, migrate = more.get("config", "3X"), more.get("migrate") == "true"
        self.world.start_java(words[0], words[1], config=config, migrate=migrate, ahead_s=ahead_s, load=load)
        return []

    async def do_stop(self, words: list[str]) -> list[str]:
        """stop w1 [w2 …]: ask for a graceful stop and wait for its end, one after the other."""
        lines = []
        for name in names(words):
            took_s = await self.world.stop(name)
            lines.append(f"{name} {self.world.machines[name].state} after {took_s:.1f} s")
        return lines

    def do_crash(self, words: list[str]) -> list[str]:
        """crash w1: kill -9."""
        for name in names(words):
            self.world.crash(name)
        return []

    def do_pause(self, words: list[str]) -> list[str]:
        """pause w1: the process stands still (SIGSTOP, a swapped-out machine) and believes what it believed."""
        self.world.pause(words[0])
        return []

    def do_resume(self, words: list[str]) -> list[str]:
        """resume w1: it goes on where it was."""
        self.world.resume(words[0])
        return []

    def do_workers(self, words: list[str]) -> list[str]:
        """workers: their states."""
        return [f"{name}  {machine.state}" for name, machine in self.world.machines.items()]

    def do_child(self, words: list[str]) -> list[str]:
        """child w1/shard-0 dies | hangs | works 5s | …: a habit of children there (* matches); `obeys` ends it."""
        pattern, habit = words[0], " ".join(words[1:])
        troupe = self.world.troupe
        if habit == "obeys":
            troupe.habits = [old for old in troupe.habits if old.pattern != pattern]
        elif words[1] == "works":
            troupe.habits.append(Habit(pattern, "works", seconds(words[2])))
        elif habit in NAMES:
            troupe.habits.append(Habit(pattern, habit, once=NAMES[habit]))
        else:
            raise StoryError(f"no such habit: {habit!r}; there are: works 5s, obeys, {', '.join(NAMES)}")
        return []

    # --- faults -------------------------------------------------------------------------------------------------------

    def do_partition(self, words: list[str]) -> list[str]:
        """partition w1 from dynamo | kinesis | both: its packets are lost until `heal w1`."""
        self.world.network.weather.cut |= {(words[0], service) for service in _SERVICES[words[2]]}
        return []

    def do_heal(self, words: list[str]) -> list[str]:
        """heal w1: end its partition."""
        weather = self.world.network.weather
        weather.cut = {cut for cut in weather.cut if cut[0] != words[0]}
        return []

    def do_throttle(self, words: list[str]) -> list[str]:
        """throttle dynamo | kinesis 20s: every request of everybody is refused."""
        weather = self.world.network.weather
        weather.throttled_until[words[0]] = self.world.clock.monotonic() + seconds(words[1])
        return []

    def do_lose(self, words: list[str]) -> list[str]:
        """lose replies 3, lose every 2nd reply for 10s: writes are applied, but nobody hears of it."""
        weather = self.world.network.weather
        if words[0] == "every":
            weather.lose_every = int(re.sub(r"\D", "", words[1]))
            weather.replies_lost_until = self.world.clock.monotonic() + seconds(words[4])
        else:
            weather.replies_to_lose = int(words[1])
        return []

    def do_slow(self, words: list[str]) -> list[str]:
        """slow dynamo 4s for 20s: every answer takes so long."""
        weather = self.world.network.weather
        weather.slow_s = seconds(words[1])
        weather.slow_until = self.world.clock.monotonic() + seconds(words[3])
        return []

    def do_delete_row(self, words: list[str]) -> list[str]:
        """delete row shard-0: by hand, from the lease table."""
        self.world.dynamo.delete_row(TABLE, full(words[0]))
        return []

    def do_delete_table(self, words: list[str]) -> list[str]:
        """delete table: the whole lease table, by hand."""
        del self.world.dynamo._tables[TABLE]
        return []

    def do_corrupt_row(self, words: list[str]) -> list[str]:
        """corrupt row shard-0: somebody writes nonsense into its counter."""
        return self._edit(words[0], "leaseCounter", {"S": "soon"})

    def do_repair_row(self, words: list[str]) -> list[str]:
        """repair row shard-0: the counter is a number again."""
        return self._edit(words[0], "leaseCounter", {"N": "1000"})

    def _edit(self, shard: str, attribute: str, value: dict[str, str]) -> list[str]:
        row = self.world.dynamo.row(TABLE, full(shard))
        if row is None:
            raise StoryError(f"{shard} has no row")
        self.world.dynamo.put_row(TABLE, {**row, attribute: value})
        return []

    def do_tool(self, words: list[str]) -> list[str]:
        """tool rollback, tool rollforward: what Amazon's migration tool writes into the row of the client version."""
        state, by = {
            "rollback": (ClientVersion.V2X, "KclMigrationTool-rollback"),
            "rollforward": (ClientVersion.UPGRADE_FROM_2X, "KclMigrationTool-rollforward"),
        }[words[0]]
        place = Place(TABLE, LEASE_TABLE_KEY)
        row = parse_state(CLIENT_VERSION, self.world.fleet_row(CLIENT_VERSION.key), place)
        self.world.dynamo.put_row(TABLE, item_of(advanced(row, state, by, int(self.world.clock.wall() * 1000)), place))
        return []

    async def do_delete_index(self, words: list[str]) -> list[str]:
        """delete index: of the leases by owner, as the tool does two minutes after a rollback."""
        change = {"Delete": {"IndexName": INDEX_NAME}}
        params = {"TableName": TABLE, "GlobalSecondaryIndexUpdates": [change]}
        await in_world(self.world.dynamo.request("tool", "UpdateTable", params, None))
        return []

    # --- time ---------------------------------------------------------------------------------------------------------

    async def do_advance(self, words: list[str]) -> list[str]:
        """advance 15s: let time pass."""
        await asyncio.sleep(seconds(words[0]))
        return []

    async def do_until(self, words: list[str]) -> list[str]:
        """until CONDITION within 60s: let time pass until it holds; prints how long that took."""
        took_s = await self.world.until(condition(self.world, words[:-2]), seconds(words[-1]))
        return [f"after {took_s:.1f} s"]

    # --- what is so ---------------------------------------------------------------------------------------------------

    def do_expect(self, words: list[str]) -> list[str]:
        """expect CONDITION: it must hold now."""
        if not condition(self.world, words)():
            raise StoryError("it is not so")
        return ["yes"]

    # --- single decisions ---------------------------------------------------------------------------------------------

    def do_graph(self, words: list[str]) -> list[str]:
        """graph 11: 0 1 | 103: 0+1>2 | 206: 2>3,4: a shard graph, by generations, for `sync`."""
        self._graph = parse_graph(" ".join(words))
        return []

    def do_trim(self, words: list[str]) -> list[str]:
        """trim 0 1: these shards of the graph are past retention."""
        gone = {full(f"shard-{word}") for word in words}
        self._graph = tuple(shard for shard in self._graph if shard.shard_id not in gone)
        return []

    def do_sync(self, words: list[str]) -> list[str]:
        """sync LATEST empty, sync TRIM_HORIZON with 3 4! 5: the leases a shard sync creates (4! is at SHARD_END)."""
        return [sync_text(self._graph, words)]

    def do_taker(self, words: list[str]) -> list[str]:
        """taker foo: bar=2 baz=2 foo=1 free=3 [priority=off] [steals=2] [max=5]: what foo takes."""
        return [taker_text(words[0].rstrip(":"), dict(word.split("=") for word in words[1:]))]

    def do_filter(self, words: list[str]) -> list[str]:
        """filter after 7/1: 7/0 7/1 7/2 8: what of a page a child with that checkpoint gets."""
        return [filter_text(words[1].rstrip(":"), words[2:])]
