"""Reads what `${file:/path}` names: a secret of Docker or Kubernetes, a credential of systemd.

The content is the value, without the line break at its end. What cannot be a value is refused in a sentence that names
the path and never the content.
"""

from __future__ import annotations

import os
import stat

from mld.properties.redaction import printable
from mld.properties.substitution import SubstitutionError

SECRET_BYTES_MAX = 64 * 1024  # a key, a token or a certificate has a few kilobytes


def secret_of(path: str) -> str:
    """Return the content of the file. Raises SubstitutionError."""
    shown = printable(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SubstitutionError(f"{shown} is no regular file", "name a file")
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        remedy = "check the path, and that the daemon's user may read the file"
        raise SubstitutionError(f"{shown} cannot be read: {error.strerror}", remedy) from None
    except SubstitutionError:
        raise
    except ValueError:  # a NUL in the path
        raise SubstitutionError("${file:…} does not name a file", "write ${file:/path/of/the/file}") from None
    if len(data) > SECRET_BYTES_MAX:
        raise SubstitutionError(f"{shown} is larger than {SECRET_BYTES_MAX} bytes", "is this the right file?")
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SubstitutionError(f"{shown} is no text", "write the value as text in UTF-8")
    if not text.strip():
        raise SubstitutionError(f"{shown} is empty", "write the value into it, or remove the line")
    return text
