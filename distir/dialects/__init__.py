"""The dialects of DistIR. Importing this package never imports torch."""

from collections.abc import Callable

from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import IRDLOperation

# xDSL's values and ops are equal only to themselves, but are hashed by a function in
# Python. Python's own hash of objects means the same, and saves a twentieth of the time in
# which a training step is distributed.
SSAValue.__hash__ = object.__hash__
IRDLOperation.__hash__ = object.__hash__


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """
    Returns a loader for each dialect of this package, by name. Calling a loader imports
    its dialect.
    """

    def collective() -> Dialect:
        from distir.dialects.collective import Collective

        return Collective

    def device() -> Dialect:
        from distir.dialects.device import Device

        return Device

    def dist() -> Dialect:
        from distir.dialects.dist import Dist

        return Dist

    def kernel() -> Dialect:
        from distir.dialects.kernel import KernelDialect

        return KernelDialect

    def onnx() -> Dialect:
        from distir.dialects.onnx import Onnx

        return Onnx

    def schedule() -> Dialect:
        from distir.dialects.schedule import ScheduleDialect

        return ScheduleDialect

    def torch() -> Dialect:
        from distir.dialects.torch import Torch

        return Torch

    def train() -> Dialect:
        from distir.dialects.train import Train

        return Train

    return {
        "collective": collective,
        "device": device,
        "dist": dist,
        "kernel": kernel,
        "onnx": onnx,
        "schedule": schedule,
        "torch": torch,
        "train": train,
    }
