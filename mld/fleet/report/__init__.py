"""Worker reports: the row in which each worker reports its load."""
