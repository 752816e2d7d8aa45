"""Makes descriptors of the text of a .proto file, by the compiler that the package grpcio-tools has.

The text is that of a stranger, so the compiler runs in a process of its own, without our environment, in a directory
with nothing but the text. What a file imports is not in the registry; only what the compiler brings along is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

COMPILE_TIMEOUT_S = 20.0
_NAME = "schema.proto"
_MODULE = "grpc_tools"
_TOLD_CHARS_MAX = 300


class CompileError(Exception):
    """A text of which no descriptors can be made; the text says why."""


def is_compiler_there() -> bool:
    """Whether the extra `schemas-protobuf` is installed."""
    return find_spec(_MODULE) is not None


def compiled_proto(definition: str) -> bytes:
    """A serialized FileDescriptorSet, the file itself last. Blocks; for a thread. Raises CompileError."""
    try:
        with tempfile.TemporaryDirectory(prefix="mld-proto-") as folder:
            Path(folder, _NAME).write_text(definition, encoding="utf-8")
            out = Path(folder, "descriptors")
            command = (sys.executable, "-m", f"{_MODULE}.protoc", "-I.", "--include_imports")
            done = subprocess.run(
                [*command, f"--descriptor_set_out={out}", _NAME],
                cwd=folder,
                env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=COMPILE_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
                raise CompileError(said[:_TOLD_CHARS_MAX])
            return out.read_bytes()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CompileError(str(error)) from error
