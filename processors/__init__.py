"""Record processors that ship with mld, as `mld.processors`. A processor of your own imports `mld.sdk`.

They import `mld.protocol`, and nothing else of the daemon. `mld/processors` is a symbolic link to this folder, which
lies next to `mld`.
"""
