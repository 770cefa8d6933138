"""The error of checks of ops."""

from distir.errors import DistIRError


class OpCheckError(DistIRError):
    """Raised if an op computes other values on several devices than on one."""
