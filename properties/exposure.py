"""Warns of secrets that other users of the machine can read, on a command line or in a file.

Nothing is refused, because the machine may have only one user. A warning names the place and the remedy, and never
shows the secret. Rules: configuration#hidden-values. Pure.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator

from mld.properties.redaction import Shown, is_secret_key
from mld.properties.references import has_file, has_reference
from mld.properties.remarks import OVERRIDE_PLACE, Level, Remark
from mld.properties.scrubber import Scrubber, secrets_in

ON_COMMAND_LINE = "holds a secret and is given on the command line, which every user of this machine can read"
IN_THE_FILE = "keep it in the file (mode 0600), or write ${NAME} there and set the variable in the daemon's environment"
PASSED_ON = "puts a secret on the command line of {whose}, which every user of this machine can read"
_PROVIDER = re.compile(r"provider(dynamodb|cloudwatch)?(\.class)?$|^mld\.stream\..+\.credentials$", re.IGNORECASE)
"""Matches keys whose value is a credentials provider, and not a secret, although the name contains a word like
"credentials"."""
_STATIC = "StaticCredentialsProvider|"
_COMMAND = re.compile(r"(mld\.stream\..+\.)?executableName")
_JAVA_OPTIONS = re.compile(r"\.extraJavaOptions$|\.defaultJavaOptions$")
_JAVA_PROPERTY = re.compile(r"-D([^\s=\"']+)=(?!\s)")


def who_else(mode: int, *, own: bool) -> str | None:
    """Return who can read a file of this mode besides its owner; None if nobody can. If the file is not our `own`, its
    group does not count: we ourselves read it as members of the group.
    """
    if mode & stat.S_IROTH:
        return "every user of this machine"
    return "its group" if own and mode & stat.S_IRGRP else None


def remarks_on_exposure(lines: Iterable[tuple[str, str, str]], file_name: str, others: str | None) -> list[Remark]:
    """Warn of secrets that others can read. `lines` has the place, key and raw value of each line and override;
    `others` is who else can read the file.
    """
    kept = list(lines)
    remarks = list(_on_command_lines(kept))
    secrets = [name for place, name, raw in kept if place != OVERRIDE_PLACE and _is_secret(name, raw)]
    if others is not None and secrets:
        message = f"holds secrets ({', '.join(dict.fromkeys(secrets))}), and {others} can read it"
        remarks.append(Remark(Level.WARNING, "", file_name, message, f"chmod 600 {file_name}"))
    return remarks


def _on_command_lines(lines: Iterable[tuple[str, str, str]]) -> Iterator[Remark]:
    """Yield a warning for each secret in an override, in the command of a record processor, or in the options of a JVM.
    Each line is (place, name of the key, value as written).
    """
    for place, name, raw in lines:
        if place == OVERRIDE_PLACE and _is_secret(name, raw):
            yield Remark(Level.WARNING, name, place, ON_COMMAND_LINE, IN_THE_FILE)
        # An argument is a secret if its name suggests it, like `password=…`, or if it is a URL with a user.
        is_exposed = _COMMAND.fullmatch(name) and (any(secrets_in(name, Shown.COMMAND, raw)) or Scrubber()(raw) != raw)
        if is_exposed:
            message = PASSED_ON.format(whose="the record processor")
            yield Remark(Level.WARNING, name, place, message, "children have the daemon's environment: set a variable")
        elif _JAVA_OPTIONS.search(name) and (has_file(raw) or any(map(is_secret_key, _JAVA_PROPERTY.findall(raw)))):
            message = PASSED_ON.format(whose="a JVM")
            remedy = "set it by JDK_JAVA_OPTIONS in the environment, or in a file by -XX:VMOptionsFile="
            yield Remark(Level.WARNING, name, place, message, remedy)


def _is_secret(name: str, raw: str) -> bool:
    """Return whether the line itself contains a secret, and not a reference."""
    if not raw.strip() or has_reference(raw):
        return False
    return _STATIC in raw if _PROVIDER.search(name) else is_secret_key(name)
