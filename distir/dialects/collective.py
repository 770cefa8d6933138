"""
The `collective` dialect: communication among the devices of a mesh.

Each kind of collective is one op in each form of a program. In the *distributed* form
an op names the mesh axes it runs `over`. The layouts of the operand and the result
determine the work of the op, and the verifier rejects layouts that the op cannot
produce. In the *per-rank* form, which `project` makes, shapes are local, and the op is
`collective.rank.KIND`. The op lists its `group`, the participating global ranks,
ordered by their position along the axes; `dim`, `run` and `reduction` hold the facts
that local types do not show. In one program for all ranks (`project{spmd}`) the op is
`collective.spmd.KIND`, and its group is a value that the program computes from the
number of the rank.

```mlir
%1 = collective.all_reduce %0 over [t] : tensor<8x4xf32, #partial> -> tensor<8x4xf32, #whole>
%1 = collective.rank.all_reduce %0 over [t] {group = array<i64: 0, 1>, reduction = "sum"} : tensor<8x4xf32> -> tensor<8x4xf32>
```
"""

from __future__ import annotations

from xdsl.ir import Dialect

from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    PermuteOp,
    RaggedAllToAllOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rank_form import RANK_OPS
from distir.dialects.collective_ops.rooted import (
    BroadcastOp,
    GatherOp,
    ReduceOp,
    ScatterOp,
)
from distir.dialects.collective_ops.spmd_form import SPMD_OPS, RankCountOp, ThisRankOp

COLLECTIVES: tuple[type[InDistributedForm], ...] = (
    AllReduceOp,
    AllGatherOp,
    ReduceScatterOp,
    AllToAllOp,
    RaggedAllToAllOp,
    SliceOp,
    PermuteOp,
    BroadcastOp,
    ScatterOp,
    ReduceOp,
    GatherOp,
)
"""The collectives of distributed programs."""

Collective = Dialect(
    "collective",
    [
        *COLLECTIVES,
        *RANK_OPS.values(),
        *SPMD_OPS.values(),
        ThisRankOp,
        RankCountOp,
        CoordinateOp,
        SendToRankOp,
        RecvFromRankOp,
        WaitOp,
    ],
    [],
)
