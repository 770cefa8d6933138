"""The error that checks of ops raise."""

from distir.errors import DistIRError


class OpCheckError(DistIRError):
    """
    Raised if a check of an op fails: for instance, if the op computes other values on
    several devices than on one.
    """
