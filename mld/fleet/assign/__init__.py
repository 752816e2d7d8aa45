"""The assignment of leases: by the leader, and by failover watchers for leases that nobody renews."""
