"""The command ``python -m mld.processors.zygote script.py``: runs a record processor in a process that is forked from a
server with all packages loaded, so that each child starts sooner and takes less memory.

Run as a file with `--serve`, this is that server. The script must not notice the server: none of our packages stays in
`sys.path` or `sys.modules`, because the user may have a module `mld` of his own.
"""

from __future__ import annotations

import sys

LISTENER_FD = 3  # the stub passes the listening socket as this descriptor


def _serve() -> None:
    """Run the server with the stub's arguments, after removing our packages from `sys.path` and `sys.modules`."""
    _, _, socket_path, owner_pid, owner_start, *arguments = sys.argv
    # Python has put the directory of this file first, unless it runs with -P. The script must not import from there.
    path = sys.path[1:] if not sys.flags.safe_path else list(sys.path)
    sys.path[:] = [__file__.removesuffix("/mld/processors/zygote/__main__.py"), *path]
    from mld.processors.zygote.server import main

    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mld"]:
        del sys.modules[name]
    main(socket_path, (int(owner_pid), int(owner_start)), arguments, LISTENER_FD)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve()
    else:
        from mld.processors.zygote import stub

        stub.main(__file__.removesuffix("/mld/processors/zygote/__main__.py"))
