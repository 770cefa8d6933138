"""The version of DistIR. Files that DistIR writes carry it."""

__version__ = "0.1.0"
