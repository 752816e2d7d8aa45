"""A fork server for record processors written in Python: ``executableName = mld-zygote my_processor.py``.

One process imports what the script imports; each child is a fork of it and runs the script from its first line. See
docs/use/fork-server.md. `stub` is the command; `server` is the process that forks, what is imported before the fork,
and whether forking is safe; `forked` turns a fork into a plain child.
"""
