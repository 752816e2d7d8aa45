"""`mld check`, with its remarks and prices; `mld conformance`."""
