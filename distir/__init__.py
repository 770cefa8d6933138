"""DistIR: an explicit IR for distributed neural-network programs, built on xDSL."""

__version__ = "0.1.0"
