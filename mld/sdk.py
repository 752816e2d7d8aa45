"""For record processors written in Python: `from mld.sdk import RecordProcessor, run`."""

from mld.processors.sdk import (
    Checkpointer,
    CheckpointError,
    DaemonError,
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    Record,
    RecordProcessor,
    ShutdownError,
    StreamLabel,
    ThrottlingError,
    run,
    serve,
)

__all__ = [
    "CheckpointError",
    "Checkpointer",
    "DaemonError",
    "DependencyError",
    "InvalidPositionError",
    "InvalidStateError",
    "Record",
    "RecordProcessor",
    "ShutdownError",
    "StreamLabel",
    "ThrottlingError",
    "run",
    "serve",
]
