"""The child protocol of the MultiLangDaemon, language-neutral. Imports nothing of ours.

`messages` are the values, `codec` is the daemon's half of the wire format, `conversation` has the rules of exchanges;
`meeting` alone does I/O.
"""
