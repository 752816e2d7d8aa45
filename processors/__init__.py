"""Record processors that ship with mld, as `mld.processors`. A processor of your own imports `mld.sdk`.

They import `mld.protocol`, and nothing else of the daemon. `mld/processors` is a symbolic link to this folder, which
lies next to `mld`. `import processors` still works for one more version, with a warning.
"""

if __name__ == "processors":
    import warnings

    import mld.processors

    warnings.warn("import mld.sdk, or mld.processors, in the place of processors", DeprecationWarning, stacklevel=2)
    __path__ = list(mld.processors.__path__)
