"""Exceptions of Java as Py4J shows them."""

from __future__ import annotations

from mld.processors.spark.session.error_classes import OF_AWS, SQL
from mld.processors.spark.session.error_kinds import Cause

OBJECT = ("java.lang.Exception", "java.lang.Throwable", "java.lang.Object")


def of(name: str, **more: object) -> Cause:
    return Cause((name, *OBJECT), **more)  # type: ignore[arg-type]


class Java:
    """An exception of Java, as Py4J shows it."""

    def __init__(self, cause: Cause, below: Java | None) -> None:
        self._cause, self._below = cause, below
        if SQL in cause.names:
            self.getSQLState = lambda: cause.state
            self.getNextException = lambda: None
        elif cause.state or cause.condition:
            self.getSqlState = lambda: cause.state or None
            self.getCondition = lambda: cause.condition or None
        if OF_AWS in cause.names:
            self.statusCode = lambda: cause.status

    def getClass(self) -> JavaClass | None:
        return JavaClass.of(self._cause.names)

    def getMessage(self) -> str:
        return self._cause.text

    def getCause(self) -> Java | None:
        return self._below


class JavaClass:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @classmethod
    def of(cls, names: tuple[str, ...]) -> JavaClass | None:
        return cls(names) if names else None

    def getName(self) -> str:
        return self._names[0]

    def getSuperclass(self) -> JavaClass | None:
        return JavaClass.of(self._names[1:])


class FromJava(Exception):
    """As Py4J raises it: its text holds the whole stack."""

    def __init__(self, *chain: Cause) -> None:
        super().__init__("\nCaused by: ".join(f"{cause.names[0]}: {cause.text}" for cause in chain))
        below = None
        for cause in reversed(chain):
            below = Java(cause, below)
        self.java_exception = below
