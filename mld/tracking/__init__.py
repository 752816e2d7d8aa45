"""The streams of a worker: the list of them, and the work for each that has nothing to do with holding leases."""
