"""The errors that DistIR shows to its users, without a traceback."""


class DistIRError(Exception):
    """
    Something the user can mend. The message is one paragraph that names the op, value
    or file and says what to do.
    """


class ShardingError(DistIRError):
    """An op cannot work on operands with these layouts."""
