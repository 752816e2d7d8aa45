"""Prepares the start of child processes: their environment, and the command for the children of each stream.

Rules: protocol#child-environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import PurePath

from mld.consumer.child import ChildCommand
from mld.core.clock import Clock
from mld.core.installed import runnable
from mld.core.streams import Streams
from mld.daemon.stream_clients import StreamClients
from mld.properties.settings import Settings
from mld.properties.spark_names import PREFIX, PROGRAM
from mld.protocol.child_command import split_command
from mld.protocol.messages import StreamLabel
from mld.retrieval.stream_naming import StreamNaming


def child_environment(
    settings: Settings, worker_id: str, properties_file: str, overrides: Sequence[str]
) -> dict[str, str]:
    """Return the variables that all children of this worker get in addition to the daemon's own environment.

    `overrides` are the settings from the daemon's command line, as `key=value`; children get only those of the
    Spark processor (`PREFIX`).
    """
    environment = {
        "MLD_STREAM_NAME": settings.stream_name,
        "MLD_APPLICATION_NAME": settings.application_name,
        "MLD_WORKER_ID": worker_id,
        "MLD_PROPERTIES_FILE": properties_file,
        "MLD_OVERRIDES": "\n".join(text for text in overrides if text.startswith(PREFIX)),
        "MLD_DAEMON_PID": str(os.getpid()),
    }
    if settings.stream_arn is not None:
        environment["MLD_STREAM_ARN"] = settings.stream_arn
    return environment


def commands_by_stream(
    clients: StreamClients, command: list[str], clock: Clock
) -> Callable[[StreamLabel | None], ChildCommand]:
    """Return a function that finds the command for the children of a stream, and remembers it.

    A stream without an `executableName` of its own gets `command`. The returned function takes the stream's label; None
    stands for the worker's only stream.
    """
    known: dict[str | None, ChildCommand] = {}

    def command_of(label: StreamLabel | None) -> ChildCommand:
        """Return the command for the children of a stream (None: of the worker's only stream). It is made once for each
        stream.
        """
        stream = None if label is None else label.id
        if stream not in known:
            opened = clients.read_stream(stream)
            own_text = None if opened.own is None else opened.own.executable_name
            chosen = command if own_text is None else runnable(split_command(own_text))
            known[stream] = ChildCommand(chosen, _naming(chosen, opened.streams, clock))
        return known[stream]

    return command_of


def _naming(command: Sequence[str], streams: Streams, clock: Clock) -> StreamNaming | None:
    """Return the object that looks up a stream's ARN and creation time for its children. Return None unless the command
    is the Spark processor.

    Only that processor needs them: it keeps positions that may outlive the stream.
    """
    return StreamNaming(streams, clock) if any(PurePath(word).name == PROGRAM for word in command) else None
