"""Log lines, their levels, and the way to standard error that nobody waits for."""
