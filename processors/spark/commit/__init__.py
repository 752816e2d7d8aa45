"""The commit: the ledger of a sink, the admission of writers to it, and the journal that publishes files with it."""
