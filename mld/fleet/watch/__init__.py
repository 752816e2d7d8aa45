"""Every worker's part: which leases nobody renews, and taking them."""
