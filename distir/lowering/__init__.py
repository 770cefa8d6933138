"""
Lowers distributed programs to code that runs: PyTorch packages, and the processes that run
them.
"""

from collections.abc import Callable

from xdsl.utils.target import Target


def get_all_targets() -> dict[str, Callable[[], type[Target]]]:
    """Returns every target by name; each is imported when it is used."""

    def torch() -> type[Target]:
        from distir.lowering.program_source import TorchTarget

        return TorchTarget

    return {"torch": torch}
