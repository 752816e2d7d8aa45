"""What this worker counts, and under which names it is published."""
