"""Protobuf data as JSON text. Pure; needs the extra `schemas-protobuf`, which is imported when the first schema comes.

Rules: retrieval#protobuf-as-json. Data begins with a number that tells which message of the file it is: its place in
the order of the full names of all messages, nested ones and those that stand for map entries included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

INDEX_BYTES_MAX = 5


class ProtobufError(Exception):
    """Descriptors that are none, or data that is not of its message; the text says why."""


def protobuf_decoder(descriptors: bytes) -> Callable[[bytes], bytes]:
    """What makes JSON text of data with a message index. Raises ProtobufError; so does what it returns.

    `descriptors`: a serialized FileDescriptorSet, whose last file is that of the schema.
    """
    from google.protobuf import descriptor_pool, json_format, message_factory
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    try:
        files = FileDescriptorSet.FromString(descriptors).file
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.Add(file)
        names = sorted(_names(files[-1].package, files[-1].message_type))
        messages = [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]
    except Exception as error:
        raise ProtobufError(f"the descriptors of the schema cannot be used: {error}") from error

    def decode(data: bytes) -> bytes:
        index, start = index_of(data)
        if index >= len(messages):
            raise ProtobufError(f"the data is of message {index}, and the schema has {len(messages)}")
        try:
            value = json_format.MessageToDict(
                messages[index].FromString(data[start:]),
                always_print_fields_with_no_presence=True,
                descriptor_pool=pool,
            )
        except Exception as error:
            raise ProtobufError(f"the data is no {names[index]}: {type(error).__name__}: {error}") from error
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    return decode


def index_of(data: bytes) -> tuple[int, int]:
    """The number of the message, and where the message begins. Raises ProtobufError."""
    index = 0
    for place, byte in enumerate(data[:INDEX_BYTES_MAX]):
        index |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return index, place + 1
    raise ProtobufError("the data does not begin with the number of a message")


def _names(scope: str, messages: Iterable[Any]) -> Iterable[str]:
    """Full names of messages, with those within them. `messages` are DescriptorProtos."""
    for message in messages:
        name = f"{scope}.{message.name}" if scope else message.name
        yield name
        yield from _names(name, message.nested_type)
