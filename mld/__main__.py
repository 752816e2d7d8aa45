"""``python -m mld``, which is what `bin/mld` runs."""

from mld.cli import main

if __name__ == "__main__":
    main()
