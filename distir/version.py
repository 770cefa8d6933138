"""The version of DistIR, which is also written into the files that DistIR makes."""

__version__ = "0.1.0"
