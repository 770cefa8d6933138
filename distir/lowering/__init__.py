"""From distributed programs to code that runs."""

from collections.abc import Callable

from xdsl.utils.target import Target


def get_all_targets() -> dict[str, Callable[[], type[Target]]]:
    """Every target by name, imported on demand."""

    def torch() -> type[Target]:
        from distir.lowering.torch_target import TorchTarget

        return TorchTarget

    return {"torch": torch}
