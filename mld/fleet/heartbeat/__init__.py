"""One write for all leases of a worker (`mld.heartbeat=worker`)."""
