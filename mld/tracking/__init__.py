"""The streams of a worker: what it does for each besides holding leases, and which they are."""
