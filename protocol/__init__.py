"""The protocol between a MultiLangDaemon and its child processes. Imports nothing else of this project.

`messages` has the values, `codec` encodes the daemon's lines, `child_lines` parses the child's lines, and
`conversation` has the rules of the exchange. Only `meeting` and `fork_requests` do I/O.
"""
