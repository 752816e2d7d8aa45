"""Worker reports: the rows in which workers report their load."""
