"""Children that break the protocol, each in one way: the examination must blame the right rule, and end."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from mld.check.conformance import Report, Rule, RuleVerdict, examine, run
from mld.check.message_schemas import flaw
from mld.protocol.messages import ActionName
from tests.support.patience import PATIENCE_S
from tests.support.tiers import one_in

TIMEOUT_S = PATIENCE_S
SHOWN_MAX = 100_000
"""Larger messages are not judged by the schemas: ten thousand alike records would take seconds."""
SPENT_S = 3.0  # where it runs out on purpose, and long enough for a child to start on a busy machine
GOOD = """
import json, os, sys, time
def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else None
def send(**message):
    print(json.dumps(message), flush=True)
def status(action):
    send(action="status", responseFor=action)
def checkpoint(sequence=None, sub=None):
    error = "ThrottlingException"
    while error == "ThrottlingException":
        send(action="checkpoint", sequenceNumber=sequence, subSequenceNumber=sub)
        error = read()["error"]
    return error
def allowed(action):
    return action not in ("initialize", "leaseLost")
"""
LOOP = """
while (message := read()) is not None:
    action = message["action"]
    if allowed(action):
        checkpoint()
    status(action)
"""


def child(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "child.py"
    script.write_text(GOOD + body)
    return [sys.executable, "-S", str(script)]


async def report_on(tmp_path: Path, body: str) -> Report:
    return await examine(child(tmp_path, body), timeout_s=TIMEOUT_S)


def broken(report: Report) -> set[Rule]:
    return {rule for rule in Rule if report.verdict(rule) is RuleVerdict.FAIL}


async def test_a_plain_child_keeps_every_rule_and_the_report_says_so(tmp_path: Path) -> None:
    report = await report_on(tmp_path, LOOP)
    assert {report.verdict(rule) for rule in Rule} == {RuleVerdict.PASS}
    assert report.holds
    out = io.StringIO()
    report.write(out)
    assert out.getvalue().endswith("It conforms: every required rule holds.\n")


async def test_a_child_gets_only_what_a_daemon_sends(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    keeps = f"""
    text = json.dumps(message)
    if len(text) < {SHOWN_MAX}:
        with open({str(heard)!r}, "a") as file:
            file.write(text + "\\n")
"""
    body = LOOP.replace('    action = message["action"]\n', f'    action = message["action"]{keeps}')
    assert (await report_on(tmp_path, body)).holds
    messages = [json.loads(line) for line in heard.read_text().splitlines()]
    assert {message["action"] for message in messages} == {action.value for action in ActionName}
    assert [flaw("daemon-to-child", message) for message in messages] == [None] * len(messages)


async def test_a_command_that_does_not_exist_fails_to_start_and_nothing_else_is_judged() -> None:
    report = await examine(["/nonexistent/processor"], timeout_s=TIMEOUT_S)
    assert broken(report) == {Rule.STARTS}
    assert report.verdict(Rule.TURNS) is RuleVerdict.NOT_OBSERVED
    assert not report.holds


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ("streamName", Rule.STREAM_KEYS),
        ("schemaError", Rule.SCHEMA_KEYS),
    ],
)
async def test_a_child_that_trips_over_a_new_key_conforms_but_that_is_told(
    tmp_path: Path, key: str, rule: Rule
) -> None:
    trips = f"""
    if any({key!r} in one for one in (message, *message.get("records", ()))):
        sys.exit(1)
"""
    body = LOOP.replace('    action = message["action"]\n', f'    action = message["action"]{trips}')
    report = await report_on(tmp_path, body)
    assert (report.holds, broken(report)) == (True, {rule})


@pytest.mark.parametrize(
    ("body", "rule"),
    one_in(
        4,
        [
            pytest.param("", Rule.INITIALIZE, id="exits at once"),
            pytest.param("os.close(1); time.sleep(60)", Rule.INITIALIZE, id="closes its output"),
            pytest.param('sys.stdout.write(\'{"action":"sta\')', Rule.INITIALIZE, id="half a line"),
            pytest.param("read(); status('processRecords')", Rule.INITIALIZE, id="answers another action"),
            pytest.param(
                "read(); status('initialize'); read(); sys.exit(3)", Rule.PROCESS_RECORDS, id="dies in the first batch"
            ),
            pytest.param(
                LOOP.replace("    status(action)", "    status(action if action != 'leaseLost' else 'shutdown')"),
                Rule.LEASE_LOST,
                id="answers leaseLost as shutdown",
            ),
            pytest.param(
                LOOP.replace("    status(action)", "    status(action)\n    status(action)"),
                Rule.TURNS,
                id="answers twice",
            ),
            pytest.param(
                LOOP.replace(
                    "    status(action)", "    status(action)\n    if action == 'processRecords': checkpoint()"
                ),
                Rule.NAMED_BETWEEN,
                id="asks between two actions without a position",
            ),
            pytest.param(
                LOOP.replace("    status(action)", "    send(action='status', responseFor=action, extra=1)"),
                Rule.MESSAGES,
                id="extra key",
            ),
            pytest.param(
                LOOP.replace(
                    "    status(action)", "    print(json.dumps(dict(action='status', responseFor=action)), 'x')"
                )
                + "    sys.stdout.flush()",
                Rule.MESSAGES,
                id="more than a message on a line",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "checkpoint() if action != 'shardEnded' else None"),
                Rule.SHARD_END_CHECKPOINT,
                id="no checkpoint at shardEnded",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "checkpoint('9' * 90 if action == 'processRecords' else None)"),
                Rule.POSITIONS,
                id="position never delivered",
            ),
            pytest.param(
                "def allowed(action): return action != 'leaseLost'\n" + LOOP,
                Rule.NO_EARLY_CHECKPOINT,
                id="checkpoint in initialize",
            ),
            pytest.param("print('hello', flush=True)\n" + LOOP, Rule.CLEAN_OUTPUT, id="prints"),
            pytest.param(LOOP + "sys.exit(7)", Rule.EXIT_STATUS, id="exits with an error"),
            pytest.param(
                LOOP.replace("checkpoint()", "checkpoint() if action != 'shutdownRequested' else None").replace(
                    "if allowed(action)", "if action not in ('initialize', 'leaseLost', 'processRecords')"
                ),
                Rule.SHUTDOWN_CHECKPOINT,
                id="no checkpoint before it goes",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "error = checkpoint(); error == 'ShutdownException' and sys.exit(1)"),
                Rule.LEASE_GONE,
                id="dies when the lease is gone",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "checkpoint() == 'ShutdownException' and checkpoint()"),
                Rule.NO_RETRY_WHEN_LOST,
                id="asks again when the lease is gone",
            ),
            pytest.param(
                LOOP.replace(
                    "checkpoint()", "send(action='checkpoint'); read()['error'] == 'ThrottlingException' and 1/0"
                ),
                Rule.THROTTLING,
                id="dies of throttling",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "send(action='checkpoint'); read()"),
                Rule.RETRIES_THROTTLED,
                id="gives up when throttled",
            ),
            pytest.param(
                LOOP.replace("checkpoint()", "checkpoint() == 'InvalidStateException' and sys.exit(0)"),
                Rule.INVALID_STATE,
                id="ends without an error in an invalid state",
            ),
            pytest.param(
                LOOP.replace(
                    "    action =",
                    "    [r['partitionKey'].encode('ascii') for r in message.get('records', [])]\n    action =",
                ),
                Rule.UNUSUAL_RECORDS,
                id="takes keys for ASCII",
            ),
            pytest.param(
                LOOP.replace("    action =", "    assert len(message.get('records', [])) < 1000\n    action ="),
                Rule.LARGE_BATCH,
                id="dies of a large batch",
            ),
        ],
    ),
)
async def test_a_child_that_breaks_one_rule_is_blamed_for_it(tmp_path: Path, body: str, rule: Rule) -> None:
    report = await report_on(tmp_path, body)
    assert rule in broken(report)
    assert report.reasons[rule]


async def test_a_child_that_names_what_it_checkpoints_after_its_answer_keeps_every_rule(tmp_path: Path) -> None:
    after = """status(action)
    if action == "processRecords":
        last = message["records"][-1]
        checkpoint(last["sequenceNumber"], last["subSequenceNumber"])"""
    report = await report_on(tmp_path, LOOP.replace("status(action)", after))
    assert broken(report) == set()


async def test_giving_up_with_an_error_in_an_invalid_state_is_allowed(tmp_path: Path) -> None:
    body = LOOP.replace("checkpoint()", "checkpoint() == 'InvalidStateException' and sys.exit(1)")
    report = await report_on(tmp_path, body)
    assert report.holds


async def test_a_silent_child_fails_at_the_deadline() -> None:
    report = await examine([sys.executable, "-S", "-c", "import time; time.sleep(600)"], timeout_s=0.3)
    assert Rule.INITIALIZE in broken(report)
    assert report.verdict(Rule.PROCESS_RECORDS) is RuleVerdict.NOT_OBSERVED, "no use in asking it seven times more"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look at processes")
async def test_a_child_that_outlives_its_input_fails_and_is_killed_with_its_own_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = f"""
if os.fork() == 0:
    time.sleep(600)
with open({str(pids)!r}, "a") as file:
    file.write(f"{{os.getpgrp()}}\\n")
{LOOP}
time.sleep(600)
"""
    report = await examine(child(tmp_path, body), timeout_s=SPENT_S)
    assert Rule.END_OF_INPUT in broken(report)
    groups = [int(line) for line in pids.read_text().split()]
    assert groups
    for group in groups:
        deadline_s = time.monotonic() + PATIENCE_S
        while _alive(group) and time.monotonic() < deadline_s:
            os.sched_yield()
        assert not _alive(group)


async def test_an_endless_writer_does_not_stop_the_examination() -> None:
    writer = "import sys\nwhile True: sys.stdout.write('noise\\n')"
    report = await examine([sys.executable, "-S", "-c", writer], timeout_s=SPENT_S)
    assert {Rule.INITIALIZE, Rule.CLEAN_OUTPUT} <= broken(report)


def test_the_report_names_the_command_the_verdicts_the_reasons_and_the_last_words(tmp_path: Path) -> None:
    out = io.StringIO()
    command = child(tmp_path, "read(); sys.exit('no database')")
    assert not run(command, timeout_s=TIMEOUT_S, out=out)
    text = out.getvalue()
    assert text.startswith("Conformance of: ")
    assert "FAIL          required     initialize" in text
    assert "-> closed its output before it answered initialize" in text
    assert "no database" in text
    assert "does not conform: required but failed or not observed: " in text


def _alive(group: int) -> bool:
    """Whether a process of the group runs; one that is dead but not yet reaped by its new parent does not."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                return True
    return False
