"""Runs the command line for ``python -m mld``, which `bin/mld` calls."""

from mld.cli import main

if __name__ == "__main__":
    main()
