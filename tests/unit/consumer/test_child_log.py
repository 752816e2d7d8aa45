"""Lines that children log: fields, levels, names and bounds."""

from __future__ import annotations

import io
import json
import logging
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mld.consumer import child_log
from mld.consumer.child_log import (
    CHILD_PREFIX,
    FIELDS_MAX,
    GOES_ON,
    LINE_CHARACTERS_MAX,
    MEMBERS_MAX,
    NO_MESSAGE,
    RESERVED,
    ChildEvent,
    ChildLogger,
    LoggedLines,
    event_of,
)
from mld.logging.logs import JsonLines, TextFormatter
from mld.properties.scrubber import Scrubber


def fields_of(line: str) -> ChildEvent:
    return event_of(line, as_fields=True)


def test_a_json_object_is_a_level_a_message_and_fields() -> None:
    line = '{"level": "warn", "message": "late", "order": 7, "user": {"id": "u1"}, "ok": true, "none": null}'
    assert fields_of(line) == ChildEvent(WARNING, "late", {"order": 7, "user": {"id": "u1"}, "ok": True, "none": None})


def test_raw_leaves_it_as_it_is() -> None:
    line = '{"level": "warn", "message": "late"}'
    assert event_of(line, as_fields=False) == ChildEvent(INFO, line)


@pytest.mark.parametrize(
    "line", ["user-0 b'click 0'", "", "  {}", "[1]", '"text"', "{not json", '{"a": NaN}', "{" * 9_000]
)
def test_any_other_line_stays_as_it_is(line: str) -> None:
    assert fields_of(line) == ChildEvent(INFO, line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ERROR no room", ERROR),
        ("spark: ERROR no room", ERROR),
        ("[WARN] late", WARNING),
        ("FATAL", CRITICAL),
        ("WARNING:root:late", WARNING),
        ("26/11/25 10:00:00 ERROR Executor: no room", ERROR),
        ("2026-11-25T10:00:00.123Z [main] SEVERE: no room", ERROR),
        ("DEBUG x", DEBUG),
        ("it says ERROR", INFO),
        ("ERRORS: 0", INFO),
        ("error", INFO),
        ("[" * 200 + "ERROR", INFO),
    ],
)
def test_a_line_that_begins_with_a_level_keeps_it(line: str, expected: int) -> None:
    assert fields_of(line) == ChildEvent(expected, line)
    assert event_of(line, as_fields=False) == ChildEvent(INFO, line)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ('"level": "trace"', DEBUG),
        ('"level": "Information"', INFO),
        ('"severity": "NOTICE"', INFO),
        ('"levelname": "WARNING"', WARNING),
        ('"log.level": "error"', ERROR),
        ('"lvl": "FATAL"', CRITICAL),
        ('"level": 10', DEBUG),  # pino, bunyan
        ('"level": 20', DEBUG),
        ('"level": 30', INFO),
        ('"level": 40', WARNING),
        ('"level": 50', ERROR),
        ('"level": 60', CRITICAL),
        ('"level": 35', INFO),
        ('"level": 100000', CRITICAL),
        ('"levelno": 30', WARNING),  # Python
        ('"levelno": 5', DEBUG),
        ('"severity": 3', ERROR),  # syslog
        ('"severity": 7', DEBUG),
        ('"level": "loud"', INFO),
        ('"level": true', INFO),
        ('"level": -1', INFO),
        ('"level": "loud", "severity": "error"', ERROR),
    ],
)
def test_levels_of_many_libraries_are_understood(level: str, expected: int) -> None:
    assert fields_of(f'{{"message": "m", {level}}}').level == expected


def test_the_message_has_many_names() -> None:
    assert fields_of('{"msg": "m"}').message == "m"
    assert fields_of('{"event": "e"}').message == "e"
    assert fields_of('{"message": {"a": 1}, "msg": "m"}') == ChildEvent(INFO, "m", {"child_message": {"a": 1}})
    assert fields_of('{"count": 1}') == ChildEvent(INFO, NO_MESSAGE, {"count": 1})


def test_no_field_of_the_child_takes_the_name_of_one_of_ours() -> None:
    line = json.dumps({"message": "m", **dict.fromkeys(sorted(RESERVED - {"message"}), "forged")})
    assert set(fields_of(line).fields) == {f"{CHILD_PREFIX}{name}" for name in RESERVED - {"message"}}


def test_the_reserved_names_are_those_of_logging() -> None:
    assert set(vars(logging.makeLogRecord({}))) | {"message", "asctime"} <= RESERVED


def test_what_is_made_of_a_line_is_bounded() -> None:
    many = fields_of(json.dumps({f"f{number}": number for number in range(100)})).fields
    assert len(many) == FIELDS_MAX + 1 and many["child_fields_left_out"] == 100 - FIELDS_MAX
    assert fields_of(json.dumps({"a": list(range(100))})).fields["a"][-1] == f"… {100 - FIELDS_MAX} more"
    crowded = json.dumps({"a": list(range(MEMBERS_MAX + 1))})
    assert fields_of(crowded) == ChildEvent(INFO, crowded)
    deep = fields_of('{"a": ' + '{"a": ' * 50 + "1" + "}" * 51).fields
    assert str(deep).count("{") == child_log.DEPTH_MAX
    long = fields_of('{"message": "' + "x" * 1_000_000 + '"}')
    assert len(long.message) < LINE_CHARACTERS_MAX + 50 and long.message.endswith("characters more")


@pytest.mark.parametrize("value", ['"hunter2"', '["hunter2"]', '{"a": "hunter2"}', "4711"])
@pytest.mark.parametrize("name", ["password", "dbPassword", "api_key", "Authorization", "x-signature", "auth"])
def test_a_telling_name_hides_its_value_at_any_depth(name: str, value: str) -> None:
    for line in (f'{{"m": 1, "{name}": {value}}}', f'{{"m": {{"n": [{{"{name}": {value}}}]}}}}'):
        shown = str(fields_of(line).fields)
        assert "hunter2" not in shown and "4711" not in shown
        assert "***" in shown


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def logged(line: str, formatter: logging.Formatter, level: int = logging.INFO) -> list[str]:
    logger, out = logging.Logger("mld.consumer.child", level), io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    ChildLogger(logger, "child_stderr", "shardId-000000000007", 4711, as_fields=True).log(line)
    return out.getvalue().splitlines()


@given(st.binary(max_size=200).map(lambda data: data * 500), st.integers(1, 70_000))
def test_a_line_is_logged_once_however_long_it_is_and_however_it_comes(data: bytes, chunk: int) -> None:
    lines = LoggedLines()
    shown = [one for at in range(0, len(data), chunk) for one in lines.feed(data[at : at + chunk])] + lines.eof()
    count = len(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n").split(b"\n"))
    assert len([one for one in shown if one]) <= 2 * count


def test_a_line_that_does_not_end_is_begun_at_once_and_counted_at_its_end() -> None:
    lines = LoggedLines()
    (begun,) = lines.feed(b"x" * 20_000)
    assert begun.startswith("xxx") and begun.endswith(GOES_ON) and len(begun) <= LINE_CHARACTERS_MAX
    assert [lines.feed(b"x" * 65_536) for _ in range(100)] == [[]] * 100
    left_out = 20_000 + 100 * 65_536 + 5 - begun.count("x")
    assert lines.feed(b"x" * 5 + b"\nnext\n") == [f"… {left_out} bytes more of this line", "next"]
    (begun,) = lines.feed(b"y" * 20_000)
    assert lines.eof() == [f"… {20_000 - begun.count('y')} bytes more of this line"]


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=12) | st.sampled_from(sorted(RESERVED)), JSON_VALUES, max_size=8))
def test_whatever_a_child_logs_is_one_line_of_json_with_our_own_fields(value: dict[str, Any]) -> None:
    (line,) = logged(json.dumps(value), JsonLines(Scrubber()))
    event = json.loads(line)
    assert (event["action"], event["shard"], event["pid"]) == ("child_stderr", "shardId-000000000007", 4711)
    assert event["logger"] == "mld.consumer.child"


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=12), JSON_VALUES, max_size=8))
def test_in_text_it_is_one_line_too(value: dict[str, Any]) -> None:
    (line,) = logged(json.dumps(value), TextFormatter(Scrubber()))
    assert line.isprintable()
    assert "mld.consumer.child" in line and "action=child_stderr" in line


def test_a_known_secret_is_removed_from_fields_and_names() -> None:
    line = '{"message": "using hunter2hunter2", "url": "http://u:hunter2hunter2@db/", "hunter2hunter2": 1}'
    for formatter in (JsonLines(Scrubber(["hunter2hunter2"])), TextFormatter(Scrubber(["hunter2hunter2"]))):
        (shown,) = logged(line, formatter)
        assert "hunter2" not in shown


def test_what_a_child_logs_below_info_is_shown_with_the_daemon_s_info_lines() -> None:
    line = '{"level": "debug", "message": "m"}'
    (shown,) = logged(line, JsonLines(Scrubber()))
    assert json.loads(shown)["level"] == "DEBUG"
    assert logged(line, JsonLines(Scrubber()), logging.WARNING) == []
    assert logged('{"level": "error", "message": "m"}', JsonLines(Scrubber()), logging.WARNING) != []
