"""A proxy that can forget connections, as a NAT or a firewall does: nothing is closed, nothing comes through any more.

Connections made before `forget` accept bytes and lead nowhere from then on; new ones work.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_PIECE_BYTES = 64 * 1024


class BlackHole:
    """Listens on `endpoint`, forwards to `upstream` byte by byte, in threads."""

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self._upstream = (address.hostname, address.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._forgotten: set[int] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self.connections = 0
        self.swallowed: set[int] = set()
        """Numbers of the forgotten connections on which something was sent since."""

    def forget(self) -> int:
        """All connections there are lead nowhere from now on; how many."""
        with self._lock:
            new = self.connections - len(self._forgotten)
            self._forgotten = set(range(self.connections))
        return new

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            ends = list(self._open)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._upstream)
            with self._lock:
                number, self.connections = self.connections, self.connections + 1
                self._open |= {near, far}
            pair = [
                threading.Thread(target=self._forward, args=(number, *ends), daemon=True)
                for ends in ((near, far), (far, near))
            ]
            self._threads += pair
            for thread in pair:
                thread.start()

    def _forward(self, number: int, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                with self._lock:
                    is_forgotten = number in self._forgotten
                    if is_forgotten:
                        self.swallowed.add(number)
                if not is_forgotten:
                    to.sendall(piece)
        with self._lock:
            is_forgotten = number in self._forgotten
        if not is_forgotten:
            with contextlib.suppress(OSError):
                to.shutdown(socket.SHUT_WR)
        with self._lock:
            self._open.discard(source)
        source.close()
