"""How long a test waits for what has to happen.

A test that waits for an event ends with the event, so a long bound costs nothing, and a short one fails on a machine
with other work. What must *not* happen, and what times out on purpose, have short bounds of their own.
"""

PATIENCE_S = 100.0
"""Less than pytest's own bound for a test, so that what is missing is named."""
