"""Lowers distributed programs to PyTorch packages."""

from collections.abc import Callable

from xdsl.utils.target import Target


def get_all_targets() -> dict[str, Callable[[], type[Target]]]:
    """
    Returns the targets by name. Each value is a function that imports its target when
    called.
    """

    def torch() -> type[Target]:
        from distir.lowering.program_source import TorchTarget

        return TorchTarget

    return {"torch": torch}
