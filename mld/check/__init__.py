"""`mld check`, what is refused before a start, and what a fleet at rest costs."""
