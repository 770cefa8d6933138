"""The version of DistIR. Files that DistIR writes contain it."""

__version__ = "0.1.0"
