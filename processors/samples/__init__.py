"""Examples to copy. `mld quickstart` runs them as they are."""
