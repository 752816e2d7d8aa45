"""The commit: ledger, admission of writers, and the journal that publishes files by them, over a file system."""
