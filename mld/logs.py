"""Logging of the daemon: one line per event, as text for people or as JSON for machines, on stderr.

Fields travel in `extra=`; the message is prose without values where a field says it. `-l` accepts what Java users have
(a logback XML file, of which the levels are honoured) and what Python users have (INI or JSON configuration).
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pythonjsonlogger.json import JsonFormatter

from properties.errors import ConfigurationError
from properties.remarks import Level, Remark

_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LOGBACK_LEVELS = {"TRACE": "DEBUG", "WARN": "WARNING", "OFF": "CRITICAL", "ALL": "DEBUG"}
_QUIET_LIBRARIES = ("botocore", "boto3", "urllib3", "asyncio", "werkzeug")


class TextFormatter(logging.Formatter):
    """``2026-01-31T18:44:23.390Z INFO  mld.worker message  shard=… counter=…``; a line never contains a line break."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        fields = " ".join(f"{name}={_field_text(value)}" for name, value in _fields(record).items())
        line = f"{stamp} {record.levelname:<7} {record.name} {_one_line(record.getMessage())}"
        if fields:
            line += "  " + fields
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES}


def _field_text(value: object) -> str:
    text = _one_line(str(value))
    return json.dumps(text) if " " in text or '"' in text or not text else text


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def configure(log_format: str, level: str, configuration_file: str | None) -> None:
    """Set up the root logger: `log_format` is text or json, `level` a level's name.

    `configuration_file` is the value of `-l`. Raises ConfigurationError if it cannot be read.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_json_formatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    if configuration_file is not None:
        _apply_file(Path(configuration_file))


def _json_formatter() -> JsonFormatter:
    return JsonFormatter(
        "%(levelname)s %(name)s %(message)s",
        rename_fields={"levelname": "level", "name": "logger"},
        timestamp=True,
    )


def log_remarks(remarks: Iterable[Remark]) -> None:
    """What the properties file deserves to be told about, one line each."""
    logger = logging.getLogger("mld.configuration")
    for remark in remarks:
        level = logging.WARNING if remark.level is Level.WARNING else logging.INFO
        logger.log(level, "%s", remark, extra={"action": "configuration", "key": remark.key})


def _apply_file(path: Path) -> None:
    import logging.config  # here, as most starts have no such file
    from xml.etree import ElementTree

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.lstrip().startswith("<"):
            _apply_logback(text, path)
        elif text.lstrip().startswith("{"):
            logging.config.dictConfig(json.loads(text))
        else:
            logging.config.fileConfig(path, disable_existing_loggers=False)
    except (OSError, ValueError, KeyError, RuntimeError, ElementTree.ParseError) as error:
        problem = Remark(
            Level.ERROR,
            "--log-configuration",
            str(path),
            f"cannot be used as a logging configuration: {error}",
            "give a logback XML file, or a Python logging configuration as INI or JSON",
        )
        raise ConfigurationError([problem]) from error


def _apply_logback(text: str, path: Path) -> None:
    """Take the levels of a logback file; its appenders and layouts belong to Java."""
    from xml.etree import ElementTree

    document = ElementTree.fromstring(text)  # noqa: S314 - the operator's own file, as trusted as the properties file
    for element in document.iter():
        if element.tag in ("root", "logger") and (level := element.get("level")):
            name = "" if element.tag == "root" else element.get("name", "")
            wanted = level.upper()
            logging.getLogger(name).setLevel(_LOGBACK_LEVELS.get(wanted, wanted))
    logging.getLogger(__name__).warning(
        "only the levels of a logback file are used; choose the layout with --log-format",
        extra={"action": "log_configuration", "file": str(path)},
    )
