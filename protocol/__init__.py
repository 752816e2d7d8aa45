"""The child protocol of the MultiLangDaemon, language-neutral. Imports nothing of ours.

`messages` are the values, `codec` the daemon's half of the wire format, `child` the other half,
`conversation` the rules of the exchange; `conformance` alone does I/O: it tests any child program.
"""
