"""`mld quickstart`: the whole product on one machine, with nothing but what the project installs itself."""

from mld.quickstart.tour import run_quickstart

__all__ = ["run_quickstart"]
