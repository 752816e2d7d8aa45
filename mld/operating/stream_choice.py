"""Which of several streams a person means, and the settings with which that one is reached alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mld.core.stream_ids import parse_stream_id
from mld.operating.acts.plan import ActRefusedError
from mld.properties.settings import Settings, StreamSetting

NAMED_MAX = 5


def chosen_stream(settings: Settings, name: str | None) -> StreamSetting:
    """The stream of the file that `name` means: its label, its own name, or its identifier; None: the only one.

    Raises ActRefusedError.
    """
    if name is None:
        if len(settings.streams) == 1:
            return settings.streams[0]
        raise ActRefusedError(f"the file names several streams: say which one with --stream, of {_some(settings)}")
    by_label = [one for one in settings.streams if one.name == name]
    found = by_label or [one for one in settings.streams if is_meant(one, name)]
    if len(found) == 1:
        return found[0]
    if found:
        labels = ", ".join(one.name for one in found)
        raise ActRefusedError(f"{name} is the name of several streams of the file: say which one, of {labels}")
    raise ActRefusedError(f"the file has no stream {name}; it has {_some(settings)}")


def only_stream(settings: Settings, name: str | None) -> StreamSetting | None:
    """As `chosen_stream`; None for a file of one stream. Raises ActRefusedError, also if that one has another name."""
    if settings.is_multi_stream:
        return chosen_stream(settings, name)
    if name not in (None, settings.stream_name):
        raise ActRefusedError(f"the file names the stream {settings.stream_name} only, and not {name}")
    return None


def is_meant(setting: StreamSetting, name: str) -> bool:
    """Whether `name` is the own name, or the identifier, of this stream."""
    id_ = parse_stream_id(name)
    if id_ is None:
        return name == setting.stream_name
    return id_.name == setting.stream_name and setting.account in (None, id_.account)


def settings_of_one(settings: Settings, setting: StreamSetting) -> Settings:
    """The settings of an application that reads this stream only, for what concerns the stream and its records."""
    return replace(
        settings,
        streams=(),
        stream_name=setting.stream_name,
        stream_arn=None if setting.arn is None else setting.arn.text,
        initial_position=setting.initial_position,
        kinesis=replace(
            settings.kinesis,
            region=setting.region or settings.kinesis.region,
            credentials=setting.credentials or settings.kinesis.credentials,
        ),
        child=replace(settings.child, command=setting.executable_name or settings.child.command),
        fanout=replace(settings.fanout, consumer_arn=setting.consumer_arn),
    )


def _some(settings: Settings) -> str:
    return names_of([one.name for one in settings.streams])


def names_of(names: Sequence[str]) -> str:
    """Some of the names, for a sentence."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
