"""`collective-to-mpi`: lowers collectives to xDSL's `mpi` dialect."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.mpi_dialect import to_mpi


@dataclass(frozen=True)
class CollectiveToMpiPass(DistIRPass):
    """
    Lowers the communication of one rank's program (`project{rank=...}`) or of one
    program for all ranks (`project{spmd}`) to xDSL's `mpi` dialect. Tensors are read
    and written through buffers (`bufferization.to_buffer`, `bufferization.to_tensor`).

    The dialect has only the communicator of all ranks. The pass refuses collectives in
    groups that lack a rank, and collectives for which the dialect has no op.
    """

    name = "collective-to-mpi"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        to_mpi(op)
