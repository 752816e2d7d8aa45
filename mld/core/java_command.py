"""Explains what to leave out when a user types the command line of Amazon's Java daemon after `mld`.

Only the properties file and the logging configuration mean the same to both daemons (protocol#command-line-of-java).
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

_WHOLE = "`mld -p FILE` with the same properties file is the whole command (docs/use/drop-in.md)"
_STARTERS = frozenset({"java", "kcl-bootstrap", "amazon_kclpy_helper.py"})
_CLASS = "MultiLangDaemon"
_JARS = ("-cp", "-classpath", "--class-path", "-jar")
_JVM = ("-X", "-javaagent:", "-agent", "-verbose", "-server", "-client", "-ea", "-esa", "-d64", "--add-", "--enable-")
_STARTER_OPTIONS = frozenset(
    {
        *("-c", "-e", "-j", "-o", "--classpath", "--execute", "--jar-folder", "--jar-path", "--java", "--java-options"),
        *("--path", "--print_classpath", "--print_command", "--sample"),
    }
)
"""Options of amazon_kclpy_helper.py and kcl-bootstrap. `-p` and `-l` are missing here, because `mld` has them too."""


def why_no_program(word: str) -> str | None:
    """Return a sentence that explains what to type instead, if the first word of the command line starts Amazon's
    daemon; else None.
    """
    if PurePath(word).name in _STARTERS or (word.endswith(_CLASS) and "." in word):
        return f"mld takes the place of {word}, and of what belongs to Java around it: {_WHOLE}"
    return None


def why_no_option(words: Iterable[str], refused: str) -> str | None:
    """Return a sentence about the first of the `words` of a command line that begins with `refused` and is an option of
    Java; None if there is no such word. `refused` is the option that the parser of the command line did not know, maybe
    only the first letter of it.
    """
    return next((remark for word in words if word.startswith(refused) and (remark := _remark_on(word))), None)


def _remark_on(word: str) -> str | None:
    """Return a sentence that says what to do about one option of Java; None if the word is no such option."""
    name = word.partition("=")[0]
    if name in _JARS:
        return f"{name} is an option of Java, and mld has no jars: leave it out, and the name of the class; {_WHOLE}"
    if name == "--properties":
        return "write -p or --properties-file for --properties"
    if name in _STARTER_OPTIONS:
        return f"{name} is for the program that starts Java, and mld starts none: leave it out; {_WHOLE}"
    if name.startswith(("-Xm", "-XX:Max")):
        return (
            f"{word} is an option of the JVM, and mld has no heap: leave it out. mld.prefetchBytesMax bounds what is "
            "read ahead; bound the service, its children included, by systemd (MemoryMax=) or the container"
        )
    if name.startswith(_JVM):
        return f"{word} is an option of the JVM, and mld has none: leave it out"
    return None
