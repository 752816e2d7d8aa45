"""Another user of the machine, who tries what he can at a daemon: run with `-I -S -c`, as a user without rights.

Standard input has one JSON object: `pids` of the daemon's processes, `trees` and `files` that are theirs, paths of
`sockets`, and `ports` of the loopback interface that they listen on. Standard output has another one: a list of
sentences, each about something that he got at, and the number of his attempts. Standard library only.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

ANSWER_S = 20.0
TRIES_AT_ONCE = 64
BYTES_MAX = 4096
PROC = ("environ", "mem", "maps", "auxv", "io", "stack", "syscall")
DIRECTORIES_OF_PROC = ("fd", "root", "cwd", "map_files")
RPC_REQUEST = 3
VERIFIER = "endpoint-verifier"
JAVA_TEXT = b"\xac\xed\x00\x05t"
"""Serialized by Java: the head of a stream with one String."""
REFUSED = (b"SaslMessage", b"SecurityException", b"Unauthenticated", b"uthenticat")
PY4J_SUCCESS = b"!y"


def main() -> None:
    told = json.load(sys.stdin)
    attempts = list(tries(told))
    got = [sentence for sentence in attempts if sentence]
    json.dump({"uid": os.getuid(), "attempts": len(attempts), "got": got}, sys.stdout)


def tries(told: dict[str, list[str]]) -> Iterator[str | None]:
    for pid in told["pids"]:
        yield from at_process(pid)
    for tree in told["trees"]:
        yield from at_tree(tree)
    for file in told["files"]:
        yield opened(file)
    for path in told["sockets"]:
        yield connected(path)
    with ThreadPoolExecutor(TRIES_AT_ONCE) as pool:  # who does not answer is waited for
        pairs = [(port, name) for port in told["ports"] for name in AT_PORTS]
        yield from pool.map(lambda pair: at_port(*pair), pairs)


def at_port(port: str, name: str) -> str | None:
    try:
        answer = AT_PORTS[name](int(port))
    except OSError:  # refused, reset, no answer
        return None
    return f"port {port}: {name} is answered {answer[:200]!r}" if answer else None


def at_process(pid: str) -> Iterator[str | None]:
    for name in PROC:
        yield opened(f"/proc/{pid}/{name}")
    for name in DIRECTORIES_OF_PROC:
        with contextlib.suppress(OSError):
            names = os.listdir(f"/proc/{pid}/{name}")  # noqa: PTH208
            yield f"/proc/{pid}/{name} lists {names[:5]}"
            continue
        yield None
    with contextlib.suppress(OSError):
        os.kill(int(pid), signal.SIGCONT)
        yield f"process {pid} takes signals"
        return
    yield None


def at_tree(tree: str) -> Iterator[str | None]:
    try:
        names = os.listdir(tree)  # noqa: PTH208
        yield f"{tree} lists {names[:5]}"
    except NotADirectoryError:
        yield opened(tree)
        return
    except OSError:
        names = []
        yield None
    for name in names:
        yield from at_tree(f"{tree}/{name}")
    with contextlib.suppress(OSError):
        os.close(os.open(f"{tree}/intruder", os.O_CREAT | os.O_WRONLY))
        yield f"{tree} takes new files"


def opened(path: str) -> str | None:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with contextlib.suppress(OSError):
            handle = os.open(path, flags | os.O_NONBLOCK)
            read = os.read(handle, 100) if flags == os.O_RDONLY else b""
            os.close(handle)
            if read or flags == os.O_WRONLY:
                return f"{path} opens: {read!r}"
    return None


def connected(path: str) -> str | None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
        return f"{path} takes our connection"
    return None


# --- ports -----------------------------------------------------------------------------------------------------------


def exchange(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as link:
        link.sendall(data)
        return link.recv(BYTES_MAX)


def web_page(port: int) -> bytes | None:
    answer = exchange(port, b"GET /environment/ HTTP/1.0\r\nHost: localhost\r\n\r\n")
    return answer if answer.startswith(b"HTTP/1.") and b" 200 " in answer.partition(b"\r\n")[0] + b" " else None


def kill_a_job(port: int) -> bytes | None:
    answer = exchange(port, b"POST /jobs/job/kill/?id=0 HTTP/1.0\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    return answer if answer.startswith(b"HTTP/1.") and b" 30" in answer.partition(b"\r\n")[0] else None


def call_java(port: int) -> bytes | None:
    answer = exchange(port, b"c\nz:java.lang.System\ngetProperty\nsjava.version\ne\n")
    return answer if answer.startswith(PY4J_SUCCESS) else None


def call_python(port: int) -> bytes | None:
    answer = exchange(port, b"c\np0\ntoString\ne\n")
    return answer if answer.startswith(b"!") and not any(word in answer for word in REFUSED) else None


def frame(kind: int, head: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">QB", 9 + len(head) + len(body), kind) + head + body


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def request(port: int, name: str) -> bytes:
    """To the endpoint of this name, from nobody: an object that the driver has to deserialize to know what it is."""
    return b"\0" + b"\1" + text("127.0.0.1") + struct.pack(">i", port) + text(name) + JAVA_TEXT + text("intruder")


def answered_by_spark(answer: bytes) -> bytes | None:
    """Spark answers in frames; a refusal says why."""
    if len(answer) < 9 or struct.unpack(">Q", answer[:8])[0] > 1 << 20:
        return None
    return None if any(word in answer for word in REFUSED) else answer


def ask_driver(port: int) -> bytes | None:
    body = request(port, VERIFIER)
    return answered_by_spark(exchange(port, frame(RPC_REQUEST, struct.pack(">QI", 1, len(body)), body)))


def ask_scheduler(port: int) -> bytes | None:
    body = request(port, "CoarseGrainedScheduler")
    return answered_by_spark(exchange(port, frame(RPC_REQUEST, struct.pack(">QI", 2, len(body)), body)))


def ask_blocks(port: int) -> bytes | None:
    parts = [struct.pack(">I", len(part)) + part for part in (b"app", b"driver", b"broadcast_0_piece0")]
    body = b"\0" + parts[0] + parts[1] + struct.pack(">I", 1) + parts[2]  # OpenBlocks
    return answered_by_spark(exchange(port, frame(RPC_REQUEST, struct.pack(">QI", 3, len(body)), body)))


AT_PORTS = {
    "a page": web_page,
    "killing a job": kill_a_job,
    "a call of Java": call_java,
    "a call of Python": call_python,
    "a request to the driver": ask_driver,
    "a request to the scheduler": ask_scheduler,
    "a request for blocks": ask_blocks,
}

if __name__ == "__main__":
    main()
