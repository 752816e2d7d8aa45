"""A way to a database that loses the answer to a COMMIT: the server does it, and whoever asked is never told.

It forwards bytes both ways. Once armed, the first message of the client that contains COMMIT is forwarded, the server's
answer is awaited, and then both connections are closed without it. Plain TCP only.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from typing import Self

CHUNK = 65_536
COMMIT = re.compile(rb"(?<!AUTO)COMMIT(?!TED)", re.IGNORECASE)
ANSWER_WAIT_S = 30.0


class LostAnswers:
    """A context manager; `port` is where clients connect to."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.armed = threading.Event()
        self.lost = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, contextlib.suppress(OSError):
            quiet = threading.Event()
            back = threading.Thread(target=self._forward, args=(server, client, quiet), daemon=True)
            back.start()
            while data := client.recv(CHUNK):
                if self.armed.is_set() and COMMIT.search(data):
                    quiet.set()
                    server.sendall(data)
                    back.join(ANSWER_WAIT_S)
                    return
                server.sendall(data)

    def _forward(self, server: socket.socket, client: socket.socket, quiet: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK):
                if quiet.is_set():
                    self.armed.clear()
                    self.lost += 1
                    return
                client.sendall(data)
