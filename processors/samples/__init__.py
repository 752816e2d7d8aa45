"""Examples to copy. `mld quickstart` runs the pipeline `clicks.py` unchanged."""
