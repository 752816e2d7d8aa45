"""The child protocol of the MultiLangDaemon, language-neutral. Imports nothing of ours.

`messages` are the values, `codec` encodes the daemon's lines, `child_lines` reads those of a child, and `conversation`
has the rules of exchanges. `meeting` and `fork_requests` alone do I/O.
"""
