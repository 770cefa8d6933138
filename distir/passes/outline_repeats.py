"""
`outline-repeats`: replaces n equal layers by one function that is called n times.

```mlir
%1 = onnx.MatMul(%0, %w0) {scope = "layers.0.fc"} : ...
%2 = onnx.Relu(%1) {scope = "layers.0.act"} : ...
%3 = onnx.MatMul(%2, %w1) {scope = "layers.1.fc"} : ...
%4 = onnx.Relu(%3) {scope = "layers.1.act"} : ...
```

becomes, with `min-ops=2`,

```mlir
%1 = func.call @layers(%0, %w0) {scope = "layers.0"} : ...
%2 = func.call @layers(%1, %w1) {scope = "layers.1"} : ...
```

and `func.func private @layers`. The ops of this function have the scopes `layers.*.fc`
and `layers.*.act`: a `*` replaces the number that differs between the calls.
`inline-calls` is the inverse.

Names and scopes do not decide which layers repeat; they only name the new functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.rewriter import InsertPoint, Rewriter

from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.program import functions
from distir.transforms.repeats.outliner import outline_function


@dataclass(frozen=True)
class OutlineRepeatsPass(DistIRPass):
    """
    Moves repeated sequences of ops into functions, the longest sequences first. A
    sequence must occur at least twice in a row, and each occurrence must use results of
    the one before it. Repeats within the new functions are outlined too.

    - `min-ops`: the smallest number of ops of a function, not counting constants.
    - `independent`: also outlines repeats that do not use each other's results, such as
      the projections of an attention layer, or experts.
    """

    name = "outline-repeats"

    min_ops: int = 4
    independent: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.min_ops < 2:
            raise DistIRError(
                f"outline-repeats: min-ops is {self.min_ops}, but a function for fewer "
                f"than 2 operations saves nothing; give min-ops=2 or more"
            )
        taken = set(functions(op))
        pending = list(functions(op).values())
        while pending:
            function = pending.pop(0)
            if len(function.body.blocks) != 1:
                continue
            outlined = outline_function(function, taken, self.min_ops, self.independent)
            Rewriter.insert_op(outlined, InsertPoint.after(function))
            pending += outlined
