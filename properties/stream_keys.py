"""The rows of the table of keys for several streams, `mld.streams` and `mld.stream.<name>.…`.

All are ours: no KCL can read several streams from a properties file.
"""

from __future__ import annotations

from datetime import timedelta

from mld.properties.keytypes import VARIABLE, Key, Section, ValueKind
from mld.properties.redaction import Shown
from mld.properties.values import FormerStreams

STREAMS, STREAMS_FILE = "mld.streams", "mld.streamsFile"
FORMER, FORMER_WAIT = "mld.formerStreams", "mld.formerStreamsWait"
PREFIX = "mld.stream."
TEXT = ValueKind.TEXT

STREAM_KEYS = (
    Key(STREAMS, ValueKind.STREAM_NAMES, Section.STREAMS,
        "Streams to read, by name, instead of streamName. Selects the form of the lease table for several streams.",
        default=(), default_text="none, one stream is read", sets="streams"),
    Key(STREAMS_FILE, TEXT, Section.STREAMS,
        "File with the list of streams, instead of mld.streams; it is read again every 20 s.", default_text="none",
        note="The [format](multi-stream.md#the-list-in-a-file) has a page.", shown_as=Shown.PLACE,
        sets="streams_file"),
    Key(FORMER, ValueKind.CHOICE, Section.STREAMS,
        "What becomes of a stream that is no longer in the list: its shards are read on (keep), or no longer, and "
        "their rows are kept (stop) or deleted after mld.formerStreamsWait (delete).", default=FormerStreams.STOP,
        choices=FormerStreams, sets="shards.former_streams"),
    Key(FORMER_WAIT, ValueKind.DURATION, Section.STREAMS,
        "How long a stream must be gone from the list before its rows are deleted.", default=timedelta(hours=1),
        default_text="PT1H", note="Only with mld.formerStreams=delete.", sets="shards.former_streams_wait_s"),
    Key("mld.recordStreamName", ValueKind.BOOL, Section.STREAMS,
        "Give every record that a child gets the field streamName.", default=False, boxed=True,
        sets="reader.adds_stream_name"),
)  # fmt: skip


def _of_stream(name: str, kind: ValueKind, meaning: str, **more: object) -> Key:
    return Key(f"{PREFIX}{VARIABLE}.{name}", kind, Section.STREAMS, meaning, boxed=True, **more)  # type: ignore[arg-type]


PATTERN_KEYS = (
    _of_stream("arn", ValueKind.STREAM_ARN, "ARN of the stream: its name, region and account.",
               default_text="the stream of this name in the region of Kinesis and the account of the credentials",
               note="With an ARN, the name in the list is a label of your own."),
    _of_stream("epoch", ValueKind.LONG, "Epoch of the stream in the lease table, as a Java application has set it.",
               minimum=1,
               default_text="what the table has for the stream, else the time of its creation in epoch seconds"),
    _of_stream("initialPosition", ValueKind.POSITION, "Where shards of the stream without a lease start.",
               default_text="initialPositionInStream"),
    _of_stream("consumerArn", TEXT, "ARN of the registered consumer that reads the stream; none is registered then.",
               default_text="none, fanoutConfig.consumerName is found or registered", shown_as=Shown.FULL,
               note="Names the stream as well: without an ARN of its own, that of the consumer counts."),
    _of_stream("credentials", ValueKind.CREDENTIALS, "Credentials for this stream.",
               default_text="AwsCredentialsProvider"),
    _of_stream("executableName", TEXT, "Command of the record processor for this stream.",
               default_text="executableName", shown_as=Shown.COMMAND),
)  # fmt: skip
PROPERTIES = tuple(key.name.rpartition(".")[2] for key in PATTERN_KEYS)


def key_of_stream(name: str, property_name: str) -> str:
    """Return the key of one property of one stream."""
    return f"{PREFIX}{name}.{property_name}"
