"""What holds for every test: how Hypothesis searches.

No example has a deadline, and slow drawing is no failure: how long an example takes says something about the machine
and its load, not about the code. In CI the examples are the same in every run, so that a change is judged by what it
changes.
"""

from __future__ import annotations

import os

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass  # the environments of `make test-lakehouse` and its like have no Hypothesis, and no test that needs it
else:
    settings.register_profile(
        "mld", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
    )
    settings.load_profile("mld")
