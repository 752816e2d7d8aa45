"""The streams that a worker reads: the list of them, and all work for a stream except holding its leases."""
