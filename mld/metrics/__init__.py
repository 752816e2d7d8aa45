"""What this worker counts, and the names under which that is published."""
