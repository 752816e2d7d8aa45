"""The part of `mld check` that says which streams an application reads, where it reads several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from properties.loader import LoadedConfiguration
from properties.printable import printable
from properties.settings import Settings
from properties.stream_keys import key_of_stream
from properties.stream_settings import StreamSetting
from properties.values import FormerStreams

UNKNOWN = "?"
_OWN = ("consumerArn", "credentials", "executableName")
"""Properties of a stream that are shown as they are given; the table of all values has them as well."""
_FORMER = {
    FormerStreams.KEEP: "is read on",
    FormerStreams.STOP: "is no longer read, and its rows are kept",
    FormerStreams.DELETE: "is no longer read, and its rows are deleted after {wait}",
}


def streams_of(loaded: LoadedConfiguration) -> list[dict[str, Any]]:
    """What the file says about each stream, fit to be shown; None where it says nothing."""
    shown = {value.key: value.value for value in loaded.effective}
    return [_stream(one, loaded.settings, shown) for one in loaded.settings.streams]


def _stream(one: StreamSetting, settings: Settings, shown: Mapping[str, str | None]) -> dict[str, Any]:
    account, epoch = one.account or UNKNOWN, UNKNOWN if one.epoch is None else one.epoch
    return {
        "name": one.name,
        "streamName": one.stream_name,
        "arn": None if one.arn is None else one.arn.text,
        "region": one.region or settings.kinesis_region,
        "identifier": f"{account}:{one.stream_name}:{epoch}",
        "initialPosition": str(one.initial_position),
    } | {name: shown.get(key_of_stream(one.name, name)) for name in _OWN}


def print_streams(console: Console, streams: Sequence[dict[str, Any]], settings: Settings) -> None:
    """A table with a line for each stream, and what is not known yet."""
    table = Table(title=f"Streams ({len(streams)})", title_justify="left")
    for title in ("name", "stream", "region", "identifier in the lease table", "starts at", "record processor"):
        table.add_column(title, overflow="fold")
    for one in streams:
        cells = (one["name"], one["streamName"], one["region"], one["identifier"], one["initialPosition"])
        command = one["executableName"] or "executableName"
        table.add_row(*(Text(printable(cell or UNKNOWN)) for cell in (*cells, command)))
    console.print(table)
    for note in _notes(streams, settings):
        console.print(Text(note, style="dim"), soft_wrap=True)


def _notes(streams: Sequence[dict[str, Any]], settings: Settings) -> Iterator[str]:
    if any(UNKNOWN in one["identifier"] for one in streams):
        yield (
            "? is known when the daemon runs: the account is that of the stream's credentials, the epoch what the "
            "lease table has for the stream, else the time of its creation."
        )
    wait = f"{settings.former_streams_wait.total_seconds():g} s"
    yield f"A stream that leaves the list {_FORMER[settings.former_streams].format(wait=wait)}."
