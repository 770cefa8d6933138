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
    Keeps the optimizer's states (moments, f32 copies of parameters) in the memory of
    the devices' hosts, as ZeRO-Offload does (Ren et al. 2021). The update itself stays
    on the device. Run the pass after `partition`, `pipeline` and `bucket-collectives`.
    Every ZeRO stage is supported.

    Each argument with `dist.role = "state"` that belongs to a parameter (`dist.of`)
    gets the element type `!dist.host`. The state is copied to the device before the
    update (`train.fetch`) and back after it (`train.offload`). Copies are made in
    groups: a group holds at most 64 MiB on a device, or the states of a single
    parameter if they are larger.
    """

    name = "offload-states"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not offload_states(op):
            raise DistIRError(
                "offload-states: the program has no optimizer that keeps states of parameters on "
                "its devices; differentiate it with adam, adamw, or sgd with momentum first"
            )
