"""Record processors that ship with mld, as `mld.processors`. A processor of your own imports `mld.sdk`.

They import `mld.protocol`, and nothing else of the daemon. The folder is beside `mld`, and `mld/processors` is a link
to it. Importing it as `processors` still works for one version, with a warning.
"""

if __name__ == "processors":
    import warnings

    import mld.processors

    warnings.warn("import mld.sdk, or mld.processors, in the place of processors", DeprecationWarning, stacklevel=2)
    __path__ = list(mld.processors.__path__)
