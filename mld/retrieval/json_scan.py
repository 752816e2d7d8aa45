"""`Scan`: finds where JSON values begin and end in the body of an answer of GetRecords, without building the values.
The readers of pages use it. Pure.

Inside a value it checks only that strings end and that brackets are balanced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

QUOTE, BACKSLASH, COMMA, COLON = b'"\\,:'
ARRAY, ARRAY_END, OBJECT, OBJECT_END = b"[]{}"

_SPACES = b" \t\r\n"
_space = re.compile(rb"[ \t\r\n]*").match
_plain_name = re.compile(rb'"([A-Za-z0-9]+)":').match
_scalar = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null").match
_structure = re.compile(rb'["\[\]{}]').search


class Scan:
    """A place in a body (`at`), with methods that move it forward over JSON. Each raises ValueError where the body is
    not JSON.
    """

    __slots__ = ("at", "body")

    def __init__(self, body: bytes, at: int = 0) -> None:
        self.body = body
        self.at = at

    def sees(self, byte: int) -> bool:
        """Skip white space, and return whether the next byte is `byte`."""
        body = self.body
        if self.at < len(body):
            found = body[self.at]
            if found not in _SPACES:
                return found == byte
        match = _space(body, self.at)
        assert match is not None
        self.at = match.end()
        return self.at < len(body) and body[self.at] == byte

    def takes(self, byte: int) -> bool:
        """Skip white space, and step over `byte` if it comes next. Return whether it came."""
        found = self.sees(byte)
        self.at += found  # by 1 if it came
        return found

    def expect(self, byte: int) -> None:
        """Step over `byte`, which must come next."""
        if not self.takes(byte):
            self.fail(f"{chr(byte)} is missing")

    def expect_end(self) -> None:
        """Check that only white space follows."""
        self.sees(COMMA)  # called only to skip white space
        if self.at != len(self.body):
            self.fail("something follows")

    def fail(self, why: str) -> NoReturn:
        """Raise ValueError with the place and the reason."""
        raise ValueError(f"not JSON at byte {self.at} of {len(self.body)}: {why}")

    def names(self, *, after_value: bool = False) -> Iterator[str]:
        """Yield the names of an object's members, and step over the closing brace at the end.

        The place must be just after the opening brace or, with `after_value`, just after the value of a member. The
        caller must step over the value of each member before it asks for the next name.
        """
        if after_value:
            if not self.takes(COMMA):
                self.expect(OBJECT_END)
                return
        elif self.takes(OBJECT_END):
            return
        while True:
            if not self.sees(QUOTE):
                self.fail("a name is missing")
            yield self._name()
            if not self.takes(COMMA):
                self.expect(OBJECT_END)
                return

    def _name(self) -> str:
        """Step over a name and the colon after it, up to the value. Return the name."""
        plain = _plain_name(self.body, self.at)
        if plain is not None:
            self.at = plain.end()
            self.sees(QUOTE)  # called only to skip white space, as below
            return plain[1].decode()
        text = self.value()
        self.expect(COLON)
        self.sees(QUOTE)
        return str(json.loads(text.decode()))

    def value(self) -> bytes:
        """Step over the value that begins here, and return its text."""
        self.sees(QUOTE)  # called only to skip white space
        start = self.at
        self.skip_value()
        return self.body[start : self.at]

    def skip_value(self) -> None:
        """Step over the value that begins here."""
        if self.sees(QUOTE):
            self._skip_string()
        elif self.sees(OBJECT) or self.sees(ARRAY):
            self._skip_nested()
        elif (match := _scalar(self.body, self.at)) is not None:
            self.at = match.end()
        else:
            self.fail("a value is missing")

    def _skip_string(self) -> None:
        """Step over a string: past the next quote that has an even number of backslashes before it.

        This uses `find`, which is much faster than a pattern.
        """
        body, end = self.body, self.at
        while True:
            end = body.find(b'"', end + 1)
            if end < 0:
                self.fail("a text does not end")
            before = end - 1
            while body[before] == BACKSLASH:
                before -= 1
            if (end - before) % 2:
                self.at = end + 1
                return

    def _skip_nested(self) -> None:
        """Step over an array or object. Its content is not checked; only brackets must be balanced."""
        depth = 0
        while True:
            match = _structure(self.body, self.at)
            if match is None:
                self.fail("a value does not end")
            self.at = match.start()
            mark = self.body[self.at]
            if mark == QUOTE:
                self._skip_string()
                continue
            self.at += 1
            depth += 1 if mark in (ARRAY, OBJECT) else -1
            if depth == 0:
                return
