"""Loaded by every Python that has this directory on its path: the ranks that a launcher starts."""

import os

if "TRACE_DIRECTORY" in os.environ:
    import training_trace

    training_trace.install()
