"""The streams of a worker: the list of them, and the work that each needs besides the holding of leases."""
