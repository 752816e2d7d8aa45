"""`streams_of`: makes a `StreamSetting` of each stream in the list of streams. Pure: `loader` reads the files.

Rules: configuration#several-streams. The names are in `mld.streams`, or in a file of their own, `mld.streamsFile`,
which the daemon reads again and again. The grammar of this file is that of the properties file: a line with just a name
for each stream, and lines `mld.stream.<name>.<property> = value`. A property of a stream may be in either of the two
files, but not in both. A list with a problem is not used at all: the daemon keeps the list that it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mld.properties import keys
from mld.properties.checked_lines import Given, check
from mld.properties.credentials import CredentialsChain
from mld.properties.key_lines import collect
from mld.properties.keys import PATTERN_KEYS, key_of_stream
from mld.properties.lines import FileEntry, GrammarError, parse
from mld.properties.redaction import shown_name, where
from mld.properties.references import Sources
from mld.properties.remarks import ConfigurationError, Level, Remark
from mld.properties.settings import STREAM_PREFIX, STREAMS_FILE, StreamSetting
from mld.properties.value_parsers import STREAM_NAME
from mld.properties.values import InitialPositionKind, InitialPositionSetting, StreamArn

CONSUMER_ARN = re.compile(
    r"(?P<arn>arn:aws[^:]*:kinesis:[^:]+:[0-9]{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+))/consumer/[a-zA-Z0-9_.-]+:[0-9]+",
    re.ASCII,
)
NO_CONSUMER_ARN = "is no ARN of a consumer (arn:aws:kinesis:REGION:ACCOUNT:stream/STREAM/consumer/NAME:TIMESTAMP)"
NO_TIME = "is not possible: the stream of a DynamoDB table cannot be read from a time on"
TABLE_EPOCH = 1  # of the stream of a DynamoDB table, in a lease table
EPOCH_MILLIS_FROM = 10**11  # as seconds, this would be in the year 5138; so a larger number is in milliseconds


@dataclass(frozen=True, slots=True)
class ListFile:
    """The content of a file with a list. `places` maps the names, in their order, to their places."""

    places: Mapping[str, str]
    given: Mapping[str, Given]
    remarks: tuple[Remark, ...]


@dataclass(frozen=True, slots=True)
class StreamList:
    """The streams of a list in its order. `secrets` has the secrets in their credentials."""

    streams: tuple[StreamSetting, ...]
    remarks: tuple[Remark, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class StreamsFile:
    """The file of `mld.streamsFile`, and what is needed to read it again. `own` has the keys of streams that are in the
    properties file."""

    path: str
    own: Mapping[str, Given] = field(repr=False)
    initial_position: InitialPositionSetting
    is_strict: bool
    sources: Sources = field(repr=False)

    def parse(self, data: bytes) -> StreamList:
        """Return the list in `data`, the present content of the file. Raises ConfigurationError with every problem."""
        name = where(self.path)
        listed = read_list(name, parsed(name, data), self.own, self.sources)
        given = {**self.own, **listed.given}
        streams, remarks = streams_of(listed.places, given, self.initial_position, list_file=name)
        remarks = [*listed.remarks, *remarks]
        bad = (Level.ERROR, Level.WARNING) if self.is_strict else (Level.ERROR,)
        problems = [
            Remark(Level.ERROR, one.key, one.place, one.message, one.remedy) for one in remarks if one.level in bad
        ]
        if problems:
            raise ConfigurationError(problems, remarks)
        secrets = tuple(secret for one in listed.given.values() for secret in one.secrets)
        return StreamList(streams, tuple(remarks), secrets)


def parsed(path: str, data: bytes) -> list[FileEntry]:
    """Return the entries of a file. Raises ConfigurationError."""
    try:
        return parse(data)
    except GrammarError as error:
        place = f"{path}:{error.line}"
        raise ConfigurationError([Remark(Level.ERROR, "", place, str(error), "write \\\\ for a backslash")]) from None


def read_list(path: str, entries: list[FileEntry], own: Mapping[str, Given], sources: Sources) -> ListFile:
    """Return the names and keys in the entries of a list. `own` has the keys of streams in the properties file, which
    must not be in both files.
    """
    remarks: list[Remark] = []
    places: dict[str, str] = {}
    lines = []
    for entry in entries:
        place = f"{path}:{entry.line}"
        if entry.key.startswith(STREAM_PREFIX):
            lines.append(entry)
        elif entry.value.strip() or not STREAM_NAME.fullmatch(entry.key):
            message = f"is neither the name of a stream nor {STREAM_PREFIX}<name>.<property> = value"
            remarks.append(
                Remark(Level.ERROR, shown_name(entry.key.rstrip(",")), place, message, "write one name on a line")
            )
        elif entry.key in places:
            message = f"is already named at {places[entry.key]}"
            remarks.append(Remark(Level.ERROR, entry.key, place, message, "remove one of the two"))
        else:
            places[entry.key] = place
    if not places and not remarks:
        remedy = "write one name on a line; to read no stream, stop the daemon"
        remarks.append(Remark(Level.ERROR, STREAMS_FILE, path, "names no stream", remedy))
    counting, more = collect(path, lines, ())
    remarks += more
    given: dict[str, Given] = {}
    for name, line in counting.items():
        checked = check(line, sources)
        remarks += checked.remarks
        if checked.given is not None:
            given[name] = checked.given
        if name in own:
            remarks.append(line.remark(Level.ERROR, f"is also given at {own[name].place}", "remove one of the two"))
    return ListFile(places, given, tuple(remarks))


def streams_of(
    places: Mapping[str, str],
    given: Mapping[str, Given],
    initial_position: InitialPositionSetting,
    *,
    list_file: str | None = None,
) -> tuple[tuple[StreamSetting, ...], list[Remark]]:
    """Return the settings of the streams in `places`, and the remarks on them.

    `given` may have other keys, too. With a `list_file`, keys of streams in the properties file may be about names that
    are not in the list yet.
    """
    remarks = list(_unlisted(places, given, list_file))
    streams = []
    for name, place in places.items():
        stream, more = _stream(name, place, given, initial_position)
        streams.append(stream)
        remarks += more
    remarks += _together(streams, given)
    return tuple(streams), remarks


def _unlisted(places: Mapping[str, str], given: Mapping[str, Given], list_file: str | None) -> Iterator[Remark]:
    """Yield remarks on keys of streams that are not in the list. If the list has a file of its own, such a key in the
    properties file is only noted, because the list may name the stream later. Anywhere else it is an error.
    """
    for spelling, one in given.items():
        name = next((found for key in PATTERN_KEYS if (found := key.name_in(spelling)) is not None), None)
        if name is None or name in places:
            continue
        if list_file is not None and not one.place.startswith(f"{list_file}:"):
            yield Remark(Level.INFO, spelling, one.place, f"is not used: {list_file} does not name {name}")
        else:
            remedy = "add the name to the list, or remove the line"
            yield Remark(Level.ERROR, spelling, one.place, f"is about {name}, which is not in the list", remedy)


def _stream(
    name: str, place: str, given: Mapping[str, Given], initial_position: InitialPositionSetting
) -> tuple[StreamSetting, list[Remark]]:
    """Return the settings of one stream, and the remarks on them. `place` is where the list names the stream. Without
    an ARN of its own, the stream is that of its consumer's ARN, if it has one.
    """
    remarks: list[Remark] = []

    def value(property_name: str) -> object:
        key = key_of_stream(name, property_name)
        return given[key].value if key in given else None

    def say(level: Level, property_name: str, message: str, remedy: str) -> None:
        key = key_of_stream(name, property_name)
        remarks.append(Remark(level, key, given[key].place if key in given else place, message, remedy))

    arn, consumer, epoch = value("arn"), value("consumerArn"), value("epoch")
    credentials, command, position = value("credentials"), value("executableName"), value("initialPosition")
    assert arn is None or isinstance(arn, StreamArn)
    assert epoch is None or isinstance(epoch, int)
    assert credentials is None or isinstance(credentials, CredentialsChain)
    assert position is None or isinstance(position, InitialPositionSetting)
    if consumer is not None:
        match = CONSUMER_ARN.fullmatch(str(consumer))
        remedy = "name a consumer of this stream"
        if match is None:
            say(Level.ERROR, "consumerArn", NO_CONSUMER_ARN, remedy)
        elif arn is not None and match["arn"] != arn.text:
            say(Level.ERROR, "consumerArn", f"is a consumer of {match['arn']}, but {arn.text} is read", remedy)
        elif arn is None and match["stream"] != name:
            message = f"is a consumer of the stream {match['stream']}, not of {name}"
            say(Level.ERROR, "consumerArn", message, f"{remedy}, or its stream with {key_of_stream(name, 'arn')}")
        else:
            arn = StreamArn.parse(match["arn"])
    start = position or initial_position
    if arn is not None and arn.is_of_table and start.kind is InitialPositionKind.AT_TIMESTAMP:
        say(Level.ERROR, "initialPosition", NO_TIME, "use TRIM_HORIZON or LATEST for it")
    if arn is not None and arn.is_of_table and epoch not in (None, TABLE_EPOCH):
        message = f"is not possible: in lease tables the stream of a DynamoDB table has the epoch {TABLE_EPOCH}"
        say(Level.ERROR, "epoch", message, "remove the line; the label of the stream tells its incarnations apart")
    elif epoch is not None and epoch >= EPOCH_MILLIS_FROM:
        message = f"looks like milliseconds; a stream's creation is {epoch // 1000} in seconds"
        say(Level.WARNING, "epoch", message, "write what the lease table has, which usually are epoch seconds")
    setting = StreamSetting(
        name=name,
        arn=arn,
        epoch=epoch,
        initial_position=position or initial_position,
        consumer_arn=None if consumer is None else str(consumer),
        credentials=credentials,
        executable_name=None if command is None else str(command),
    )
    return setting, remarks


def _together(streams: list[StreamSetting], given: Mapping[str, Given]) -> Iterator[Remark]:
    """Yield errors about streams that are listed twice, or that one application cannot read together."""
    partition: tuple[str, str] | None = None  # of the first stream with an ARN, and the key that names it
    by_account_and_name: dict[tuple[str, str], StreamSetting] = {}
    for stream in streams:
        if stream.arn is None:
            continue
        key = next(  # the key that gave the stream its ARN
            key
            for key in (key_of_stream(stream.name, "arn"), key_of_stream(stream.name, "consumerArn"))
            if key in given
        )
        place = given[key].place
        if partition is None:
            partition = (stream.arn.partition, key)
        if stream.arn.partition != partition[0]:
            message = f"is in the partition {stream.arn.partition}, and {partition[1]} is in {partition[0]}"
            yield Remark(Level.ERROR, key, place, message, "one application cannot span partitions: use another one")
        elif stream.arn.regions_partition is not None:
            message = f"names the partition {stream.arn.partition}, but its region is in {stream.arn.regions_partition}"
            yield Remark(Level.ERROR, key, place, message, "copy the ARN from the service")
        earlier = by_account_and_name.setdefault((stream.arn.account, stream.arn.name), stream)
        if earlier is stream:
            continue
        assert earlier.arn is not None
        if earlier.arn == stream.arn:
            message = f"is the stream that {earlier.name} is as well"
            yield Remark(Level.ERROR, key, place, message, "name each stream once")
        else:
            message = (
                f"has the account and the name of {earlier.name} ({earlier.arn.region}): rows of the lease table name "
                "a stream by these, not by its region"
            )
            yield Remark(Level.ERROR, key, place, message, "read one of the two with another applicationName")


assert all(keys.find(key_of_stream("name", key.name.rpartition(".")[2])) is not None for key in PATTERN_KEYS)
