"""Commits batches to sinks exactly once. Each sink has a ledger of its commits (`ledger`); `admission` decides which
writers may add to it, and `journal` moves the files of a commit into the sink."""
