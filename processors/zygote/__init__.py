"""A fork server for record processors written in Python: ``executableName = mld-zygote my_processor.py``.

One process, the server, imports what the script imports. Each child is a fork of the server and runs the script from
its first line. See docs/use/fork-server.md. `stub` is the command; `server` is the process that forks; `import_plan`
decides what it imports before; `fork_safety` decides whether forking is safe; `forked` turns a fork into a plain child.
"""
