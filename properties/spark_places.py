"""Refuses places that a sink must not have: the place of another sink, or a directory whose readers would never see
plain files.

A sink stores its marks beside its rows: the positions up to which it has written each shard. Records up to its mark
are skipped. Two sinks in one place would have the same marks, so each would skip records that only the other one has
written. Pure; `exists` is passed in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from mld.properties.remarks import Level, Remark, nearest
from mld.properties.spark_lines import SinkLines, SparkLines
from mld.properties.spark_names import PREFIX, SINK_PREFIX

PLACED = ("parquet", "orc", "json", "csv", "text", "avro", "delta", "iceberg")
"""Formats of which a sink keeps its marks beside its rows."""
FILES = PLACED[:6]
"""Formats of plain files."""
TAKEN_BY = {"_delta_log": "a table of Delta", "_spark_metadata": "a sink of Structured Streaming"}
"""Directories that list the files of a table. If one of them exists, Spark's readers see only the files that it
lists."""
JDBC = "jdbc"


def check_places(values: Mapping[str, object], sinks: Mapping[str, SinkLines], say: Callable[..., None]) -> None:
    """Call `say` with a remark for each place that cannot be used.

    Refused are: two sinks in one place, or a sink in the place of the dead letters, because they would have the same
    marks, and what one has written would count as written by the other; a spool that is a whole bucket, or overlaps
    with a sink or with the dead letters; and a path that begins like S3 but names no bucket. There is a warning for a
    format that looks misspelt.
    """
    dead_letters = values["deadLetter"]
    user_of_place = {spelled(str(dead_letters)): f"{PREFIX}deadLetter"} if dead_letters else {}
    _check_bucket("deadLetter", str(dead_letters or ""), say)
    spool = spelled(str(values["spool"] or ""))
    if re.fullmatch(r"s3:/{0,2}[^/]*", spool):
        say("spool", "is a whole bucket, in which old pages are deleted", "write s3://bucket/directory")
    for key, path in {
        "deadLetter": dead_letters,
        **{f"sink.{one}.path": _place_of_marks(sinks[one]) for one in sinks},
    }.items():
        if path and values["spool"] and _overlap(spool, spelled(str(path))):
            say("spool", f"has what {PREFIX}{key} has, or is within it", "give it a directory of its own")
    for name, sink in sinks.items():
        _check_bucket(f"sink.{name}.path", sink.values.get("path", ""), say, place=sink.place)
        place = _place_of_marks(sink)
        if place is not None and user_of_place.setdefault(place, f"{SINK_PREFIX}{name}") != f"{SINK_PREFIX}{name}":
            remedy = "give each a place of its own, or write one frame (unionByName); rows of one would be left out"
            say(f"sink.{name}", f"is in the same place as {user_of_place[place]}", remedy, place=sink.place)
        format_ = sink.values.get("format", "").lower()
        known = (*PLACED, JDBC)
        if format_ and format_ not in known and (near := nearest(format_, known, cutoff=0.75)):
            message = "is no format whose commits are known, and is written at least once by a writer of that name"
            say(f"sink.{name}.format", message, f"did you mean {near}?", Level.WARNING, sink.place)


def taken_places(lines: SparkLines, exists: Callable[[str], bool]) -> Iterator[Remark]:
    """Yield an error for each local directory that would get plain files, but belongs to a table that lists its own
    files (`TAKEN_BY`): readers would never see ours.
    """
    places = [
        (f"{SINK_PREFIX}{sink.name}.path", sink.values.get("path", ""), sink.place)
        for sink in lines.sinks
        if sink.values.get("format", PLACED[0]).lower() in FILES
    ]
    dead_letter_key = f"{PREFIX}deadLetter"
    places.append(
        (dead_letter_key, str(lines.values["deadLetter"] or ""), lines.shown.get(dead_letter_key, ("", ""))[1])
    )
    for key, path, place in places:
        uniform_path = spelled(path) if path else ""
        for name, owner in TAKEN_BY.items():
            if uniform_path and "://" not in uniform_path and exists(posixpath.join(uniform_path, name)):
                why = f"has {name}, as {owner} keeps it, and readers go by that alone: they would never see our files"
                yield Remark(Level.ERROR, key, place, why, "use a new directory")


def _check_bucket(name: str, path: str, say: Callable[..., None], **where: str) -> None:
    """Refuse a path that begins like one of S3 but names no bucket, such as ``s3:/lake``."""
    if re.match(r"s3[an]?:(?!//[^/])", path, re.IGNORECASE):
        say(name, "begins like S3 and names no bucket", "write s3://bucket/directory, with two slashes", **where)


def _place_of_marks(sink: SinkLines) -> str | None:
    """Return the place where a sink keeps its marks, for the comparison with other sinks; None if its marks cannot be
    those of another sink.
    """
    format_ = sink.values.get("format", PLACED[0]).lower()
    if format_ == JDBC:
        options = {name.lower(): value for name, value in sink.options.items()}
        return f"{options['url']} {options['dbtable']}" if {"url", "dbtable"} <= options.keys() else None
    path = sink.values.get("path")
    return spelled(path) if path and format_ in PLACED else None


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two places is within the other, or the same."""
    one, other = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)


def spelled(path: str) -> str:
    """Return a path or URI in a uniform spelling, so that equal places have equal texts."""
    scheme, colon, rest = path.partition("://")
    if not colon:
        return posixpath.normpath(path.removeprefix("file:"))
    scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme.lower(), scheme.lower())
    return posixpath.normpath(rest) if scheme == "file" else f"{scheme}://{posixpath.normpath(rest)}"
