"""Leases: rows of the lease table, conditional writes, and the leases that this worker holds."""
