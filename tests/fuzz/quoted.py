"""Words that a record, a child or a row contains, through everything that repeats them to people.

A child fails over a record and quotes it in its last line on stderr, and its shard, its stream and its worker have such
names. `check_quoted` takes the words through each medium, and holds the one function that knows the medium to its
promise, by a reading that is not ours:

log          one line of visible characters, or one object of JSON
row          `why` in a lease row: visible characters, no secret, bounded
events       text and lines in the history: visible characters, no secret
terminal     a listing and a message: visible characters only
chat         a post: nothing that a chat acts on, and no word of theirs in its text
systemd      one message of one line
CloudWatch   a dimension that it takes
session host a line of mld-spark's host, and the reason that it gives a child: visible characters, no secret, bounded

    python -m tests.fuzz.quoted --examples 100000     a long run; part of `make fuzz-producer`
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mld.consumer.failure_words import in_words
from mld.core.terminal import terminal_text
from mld.daemon.assembly import _status_of_shard
from mld.daemon.systemd import ServiceManager
from mld.leases import rows
from mld.leases.lease import ShardStatus
from mld.logging.logs import JsonLines, TextFormatter
from mld.metrics.datums import dimension_text
from mld.metrics.events import TEXT_CHARACTERS_MAX, Event, EventKind
from mld.metrics.identity import Identity
from mld.metrics.registry import Metrics
from mld.operating.events import fit
from mld.operating.fleet_sight import FleetSight
from mld.operating.listings import lag_listing, leases_listing
from mld.operating.printing import aligned
from mld.operating.verdicts import faults_of
from mld.processors.spark.sanitizing import LINE_CHARS_MAX, SanitizedLines, sanitizer_of
from mld.properties.printable import printable
from mld.properties.scrubber import Scrubber
from mld.protocol.conversation import ProcessorGoneError
from mld.serving.alert_book import Post
from mld.serving.alert_post import document
from tests.support.chats import ATTACKS, acted_on, texts_in
from tests.unit.operating.test_fleet_status import NOW_S, lease, view

SECRET = "pl4nted+0001Zq7ed"
SCRUB = Scrubber([SECRET])
ME = Identity("clicks", "clicks-stream", "w-1", "0.3")
EXAMPLES = 20_000

_pieces = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            *ATTACKS,
            SECRET,
            "\n",
            "\r\n",
            "\x1b[2J\x1b]0;title\x07",
            "\u2028\u202e\x85\x9b",
            "\ud800",
            "READY=1",
            "WATCHDOG=1",
            "Traceback (most recent call last):",
            "ValueError: ",
            "mld: all is well",
            "2026-01-31T18:44:23.390Z INFO  mld.daemon.worker stopped",
            "$(reboot)",
            "`reboot`",
            "x" * 3000,
        ]
    ),
)
words = st.lists(_pieces, min_size=1, max_size=6).map("".join)


def check_quoted(text: str) -> None:
    """Take a text through every medium. Raises AssertionError if one of them gets it otherwise than promised."""
    said = in_words(ProcessorGoneError("closed its output"), "exited with status 1", (f"ValueError: {text}", text))
    _check_log(said, text)
    why = _check_row(said)
    _check_events(said, text)
    _check_terminal(why, text)
    _check_chat(said, text)
    _check_systemd(text)
    _check_session_host(text)
    value = dimension_text(text)
    assert 1 <= len(value) <= 1024 and value.strip() and all(" " <= one <= "~" for one in value), value


def _check_session_host(name: str) -> None:
    """A column, a writer or a file of a sink has such a name."""
    fit = sanitizer_of([SECRET], {})
    for many in (name, name * 100):
        record = logging.makeLogRecord({"levelname": "ERROR", "msg": "sink out: its column %s", "args": (many,)})
        for line in (SanitizedLines(fit).format(record), fit(many)):
            assert line.isprintable() and len(line) <= LINE_CHARS_MAX, line
            assert SECRET not in line


class _Stopped:
    """A clock that stands still."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return float(NOW_S)

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing sleeps here")


def _check_log(said: str, name: str) -> None:
    extra = {"action": "child_failed", "shard": name, "why": said}
    record = logging.makeLogRecord({"name": "mld", "levelno": 30, "levelname": "WARNING", "msg": said, **extra})
    line = TextFormatter(SCRUB).format(record)
    assert line.isprintable(), line
    assert SECRET not in line
    line = JsonLines(SCRUB).format(record)
    assert line.isascii() and "\n" not in line and json.loads(line)["action"] == "child_failed"
    assert SECRET not in line


def _check_row(said: str) -> str:
    """Return the reason as the row has it."""
    metrics = Metrics()
    metrics.begin("shardId-0", 0.0).failed("exit", said, float(NOW_S))
    status = _status_of_shard(metrics, _Stopped(), lambda text: printable(SCRUB(text)), "shardId-0")
    assert status is not None
    why = str(rows.status_values(status)[rows.WHY]["S"])
    assert why.isprintable() and len(why) <= rows.WHY_CHARACTERS_MAX, why
    assert SECRET not in why
    return why


def _check_events(said: str, name: str) -> None:
    event = fit(Event(EventKind.FAILED, said, name, name, NOW_S, tuple(said.split("\n"))[-5:]), SCRUB)
    for one in (event.text, event.worker, event.shard, *event.lines):
        assert one.isprintable() and len(one) <= TEXT_CHARACTERS_MAX, one
    assert SECRET not in event.text + "".join(event.lines)


def _check_terminal(why: str, name: str) -> None:
    message = terminal_text(name)
    assert message.isprintable(), message
    read, ours = (ShardStatus("failing", NOW_S, 0, why=one) for one in (name, why))
    fleet = view(lease(status=read, owner=name or "w"), lease("shardId-1", status=ours))
    for listing in (leases_listing(fleet, fleet.shards), lag_listing(fleet)):
        assert [line for line in aligned(listing) if not line[:-1].isprintable()] == []


def _check_chat(said: str, name: str) -> None:
    fleet = view(lease(name or "shardId-0", owner=name or "w", status=ShardStatus("failing", NOW_S, 0, why=said)))
    for fault in faults_of(FleetSight(fleet=fleet, file="app.properties")):
        told: dict[str, Any] = dict(document(Post(fault.kind, True, (fault,)), ME, NOW_S, SCRUB, with_details=True))
        assert [found for one in texts_in(told) for found in acted_on(one, (told["runbook"],))] == [], told
        assert SECRET not in json.dumps(told)
        silent = replace(fault, words="", remedy="")
        bare, without = (
            document(Post(fault.kind, True, (one,)), ME, NOW_S, SCRUB, with_details=False) for one in (fault, silent)
        )
        assert bare == without, "a reason is in it"


class _Told(ServiceManager):
    """Keeps what it would send."""

    def __init__(self) -> None:
        super().__init__("/nowhere")
        self.messages: list[bytes] = []

    def _send(self, state: str) -> None:
        self.messages.append(state.encode())


def _check_systemd(text: str) -> None:
    manager = _Told()
    manager.status(text)
    (message,) = manager.messages
    assert message.startswith(b"STATUS=") and message.count(b"\n") == 0, message


def run(examples: int, *, derandomize: bool) -> None:
    """Take so many drawn texts through all media; raises what fails, with a text as short as can be."""
    limits = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    limits(given(words)(check_quoted))()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.quoted")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="texts (default %(default)s)")
    arguments = parser.parse_args()
    began = time.monotonic()
    run(arguments.examples, derandomize=False)
    print(f"{arguments.examples} quoted texts in {time.monotonic() - began:.0f} s: nothing found", flush=True)


if __name__ == "__main__":
    main()
