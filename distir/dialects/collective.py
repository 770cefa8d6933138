"""
The `collective` dialect: communication among the devices of a mesh.

The same ops serve two forms of a program. In the *distributed* form an op names the
mesh axes it runs `over`. The layouts of its operand and result determine its work, and
the verifier rejects everything else. In the *per-rank* form shapes are local. An op
then also lists its `group`: the global ranks that take part, ordered by their position
along the axes. `dim`, `run` and `reduction` hold the facts that local types do not
show.

```mlir
%1 = collective.all_reduce %0 over ["t"] : tensor<8x4xf32, #partial> -> tensor<8x4xf32, #whole>
%1 = collective.all_reduce %0 over ["t"] {group = array<i64: 0, 1>, reduction = "sum"} : ...
```
"""

from __future__ import annotations

from xdsl.ir import Dialect

from distir.dialects.collective_ops.base import CollectiveOp
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
from distir.dialects.collective_ops.rooted import (
    BroadcastOp,
    GatherOp,
    ReduceOp,
    ScatterOp,
)

COLLECTIVES: tuple[type[CollectiveOp], ...] = (
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

Collective = Dialect(
    "collective",
    [*COLLECTIVES, CoordinateOp, SendToRankOp, RecvFromRankOp, WaitOp],
    [],
)
