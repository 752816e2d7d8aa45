"""What this worker counts, under which names it is published, and one snapshot for every view of it."""
