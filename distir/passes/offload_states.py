"""`offload-states`: keeps the optimizer's states in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.transforms.memory.state_offloading import offload_states


@dataclass(frozen=True)
class OffloadStatesPass(DistIRPass):
    """
    Keeps what an optimizer knows of each parameter (moments, copies in f32) in the memory of the
    devices' hosts, as ZeRO-Offload does (Ren et al. 2021); the update itself stays on the device.
    It comes after `partition`, `pipeline` and `bucket-collectives`, whatever ZeRO splits.

    Arguments with `dist.role = "state"` that belong to a parameter (`dist.of`) get elements of
    type `!dist.host`. They are copied to the device in front of their update (`train.fetch`), and
    back behind it (`train.offload`), in groups of at most 64 MiB on a device, or of one
    parameter.
    """

    name = "offload-states"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not offload_states(op):
            raise DistIRError(
                "offload-states: the program has no optimizer that keeps states of parameters on "
                "its devices; differentiate it with adam, adamw, or sgd with momentum first"
            )
