"""Examples to copy. `mld quickstart` runs the one about clicks as it is."""
