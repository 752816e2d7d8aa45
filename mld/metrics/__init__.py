"""The counts and measurements of a worker, and the names under which they are published."""
