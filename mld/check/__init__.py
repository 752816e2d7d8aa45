"""`mld check` with its remarks and prices, and `mld conformance`."""
