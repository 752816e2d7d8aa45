"""Record processors that ship with mld, as `mld.processors`; `mld.sdk` is what a processor of one's own imports.

They import `mld.protocol`, and nothing else of the daemon. The folder stands beside `mld`; `mld/processors` leads to
it. By the name `processors` they were imported before; that goes on for one version, with a warning.
"""

if __name__ == "processors":
    import warnings

    import mld.processors

    warnings.warn("import mld.sdk, or mld.processors, in the place of processors", DeprecationWarning, stacklevel=2)
    __path__ = list(mld.processors.__path__)
