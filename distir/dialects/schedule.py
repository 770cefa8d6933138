"""
The `schedule` dialect: a user's instructions on how a program is to run, written
separately from the program.

A schedule is the body of an `xdsl.dialects.transform` `named_sequence`. Its argument is
a handle of the whole program. Its ops take and return handles: of modules of the model,
of parameters, of groups of ops, and of knobs, which are values that a user may still
choose. The pass `apply-schedule` applies a schedule.

```mlir
transform.named_sequence @schedule(%model: !transform.any_op) {
  %layers = schedule.match "encoder.layer.*" in %model
  %up = schedule.match "intermediate.dense" in %layers
  %weights = schedule.parameters "weight" of %up
  schedule.shard %weights {dim = 1 : i64, axis = "t"}
  transform.yield
}
```

The attribute `schedule.by` of any op tells messages where the user wrote the op.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import (
    I64,
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    UnitAttr,
)
from xdsl.dialects.transform import AnyOpType, AnyParamType, AnyValueType
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    attr_def,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsolatedFromAbove, IsTerminator
from xdsl.utils.exceptions import VerifyException

from distir.dialects.kernel import IMPLEMENTATION

BY = "schedule.by"
"""
The attribute of a schedule's op that tells where the user wrote the op: a file and a
line.
"""

BACKENDS = ("eager", "inductor")
"""The backends that can run a fused group."""

CUDA_GRAPH = "cuda_graph"
"""The value of `dist.compiled` for functions that CUDA replays as one graph."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)

KnobValue = IntegerAttr | FloatAttr | StringAttr

OPTIONS = ("batch", "d", "t", "p", "k", "zero")
"""
The meanings that a knob can have when a schedule is tuned: the options of `distribute`
that it can stand for, and the batch size.
"""


@irdl_op_definition
class MatchOp(IRDLOperation):
    """
    Finds the modules whose path relative to `root` matches `pattern`.

    The parts of a path are separated by dots. `*` matches any text within a part, and
    `**` any number of parts. With `regex`, the pattern is a regular expression that
    must match the whole path. With `count`, exactly that many modules must match.
    """

    name = "schedule.match"

    pattern = prop_def(StringAttr)
    root = operand_def(AnyOpType())
    count = opt_attr_def(IntegerAttr[I64])
    regex = opt_attr_def(UnitAttr)
    result = result_def(AnyOpType())

    assembly_format = "$pattern `in` $root attr-dict"


@irdl_op_definition
class FirstOp(IRDLOperation):
    """
    The first of the given modules, in program order. A whole number in `amount`, or in
    the knob, is the number of modules; any other number is the fraction of the modules
    (rounded down).
    """

    name = "schedule.first"

    modules = operand_def(AnyOpType())
    knob = opt_operand_def(AnyParamType())
    amount = opt_attr_def(KnobValue)
    result = result_def(AnyOpType())

    assembly_format = "$modules (`by` $knob^)? attr-dict"

    def verify_(self) -> None:
        if (self.knob is None) == (self.amount is None):
            raise VerifyException(
                "schedule.first takes an `amount`, or a knob that says it"
            )


@irdl_op_definition
class FindOp(IRDLOperation):
    """
    Finds groups of ops in modules that compute the same as a pattern.

    The result is a handle of groups, for `fuse`, `replace`, `decompose` and
    `recompute`. The pattern is a block of `schedule.node`s and `schedule.constant`s.
    Its arguments stand for any values. Its `schedule.found` stands for the value that a
    group computes. There must be at least one group, unless the op is `optional`.

    ```mlir
    %groups = schedule.find in %layers {
    ^bb0(%x: !transform.any_value, %b: !transform.any_value):
      %0 = schedule.node "onnx.Add"(%x, %b)
      %1 = schedule.node "onnx.Gelu"(%0)
      schedule.found %1
    }
    ```
    """

    name = "schedule.find"

    modules = operand_def(AnyOpType())
    optional = opt_attr_def(UnitAttr)
    pattern = region_def("single_block")
    result = result_def(AnyOpType())

    traits = traits_def(IsolatedFromAbove())
    assembly_format = "`in` $modules attr-dict-with-keyword $pattern"

    def verify_(self) -> None:
        block = self.pattern.block
        last = block.last_op
        if not isinstance(last, FoundOp):
            raise VerifyException("schedule.find: its pattern ends in schedule.found")
        if not isinstance(last.value.owner, NodeOp):
            raise VerifyException(
                "schedule.find: its pattern computes nothing; what it finds must be the "
                "result of a schedule.node"
            )
        for op in block.ops:
            if not isinstance(op, NodeOp | ConstantOp | FoundOp):
                raise VerifyException(
                    f"schedule.find: {op.name} is no part of a pattern"
                )
            if not all(result.first_use for result in op.results):
                raise VerifyException(
                    f"schedule.find: the pattern has a dead end: nothing uses what its "
                    f"{op.properties.get('op', op.name)} computes"
                )
        for argument in block.args:
            if argument.first_use is None:
                raise VerifyException(
                    f"schedule.find: the pattern does not use its argument {argument.index}"
                )


@irdl_op_definition
class NodeOp(IRDLOperation):
    """
    An op of a pattern, with a name, operands and attributes.

    The matching op of the program may have further operands after the given ones. The
    matching op must have the attributes `with`, explicitly or as ONNX's defaults. For
    an `onnx.Transpose`, `swaps = [-1, -2]` means that the op exchanges these two
    dimensions.
    """

    name = "schedule.node"

    op = prop_def(StringAttr)
    inputs = var_operand_def(AnyValueType())
    having = opt_attr_def(DictionaryAttr, attr_name="with")
    swaps = opt_attr_def(ArrayAttr[IntegerAttr[I64]])
    result = result_def(AnyValueType())

    assembly_format = "$op `(` $inputs `)` attr-dict"


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """
    A constant of a pattern. A constant of the program matches, whatever its shape, if
    all its elements equal `value`.
    """

    name = "schedule.constant"

    value = prop_def(FloatAttr)
    result = result_def(AnyValueType())

    assembly_format = "$value attr-dict"


@irdl_op_definition
class FoundOp(IRDLOperation):
    """Ends a pattern and names the value that a matching group computes."""

    name = "schedule.found"

    value = operand_def(AnyValueType())

    traits = traits_def(IsTerminator())
    assembly_format = "$value attr-dict"


@irdl_op_definition
class FuseOp(IRDLOperation):
    """
    Turns each group into a function called `symbol` that runs as one piece. With
    `backend` "inductor", PyTorch's compiler makes one kernel of the function. With
    "eager", its ops run one by one.
    """

    name = "schedule.fuse"

    groups = operand_def(AnyOpType())
    symbol = attr_def(StringAttr)
    backend = attr_def(StringAttr)

    assembly_format = "$groups attr-dict"

    def verify_(self) -> None:
        if self.backend.data not in BACKENDS:
            raise VerifyException(
                f"schedule.fuse: backend = {self.backend}; write {' or '.join(BACKENDS)}"
            )
        if not _SYMBOL.fullmatch(self.symbol.data):
            raise VerifyException(
                f"schedule.fuse: {self.symbol} is no name of a function; use letters, "
                f"digits and _"
            )


@irdl_op_definition
class ReplaceOp(IRDLOperation):
    """
    Replaces each group with the ONNX operator `op`. The operator's inputs are the
    group's inputs, in the order of the pattern's arguments; its attributes are `with`.
    The replacement is refused unless the operator computes the same as the group.
    """

    name = "schedule.replace"

    groups = operand_def(AnyOpType())
    op = attr_def(StringAttr)
    having = opt_attr_def(DictionaryAttr, attr_name="with")

    assembly_format = "$groups attr-dict"


@irdl_op_definition
class KernelOp(IRDLOperation):
    """
    Replaces each group with a user's kernel called `symbol`; the group becomes the
    kernel's reference. `implementation` names the kernel's function;
    `distir.dialects.kernel` explains its properties. Without `rule`, the sharding rule
    is derived from the group.
    """

    name = "schedule.kernel"

    groups = operand_def(AnyOpType())
    symbol = attr_def(StringAttr)
    implementation = attr_def(StringAttr)
    rule = opt_attr_def(StringAttr)
    gradient = opt_attr_def(StringAttr)
    options = opt_attr_def(DictionaryAttr)
    tolerance = opt_attr_def(FloatAttr)
    flops = opt_attr_def(StringAttr)
    workspace = opt_attr_def(StringAttr)

    assembly_format = "$groups attr-dict"

    def verify_(self) -> None:
        if not _SYMBOL.fullmatch(self.symbol.data):
            raise VerifyException(
                f"schedule.kernel: {self.symbol} is no name of a kernel; use letters, "
                f"digits and _"
            )
        if not IMPLEMENTATION.fullmatch(self.implementation.data):
            raise VerifyException(
                f"schedule.kernel: implementation = {self.implementation} names no function; "
                f"write MODULE:FUNCTION, such as my_kernels:attention"
            )


@irdl_op_definition
class DecomposeOp(IRDLOperation):
    """
    Replaces ops in the given groups or modules with their decompositions. Ops that have
    no decomposition stay.
    """

    name = "schedule.decompose"

    target = operand_def(AnyOpType())

    assembly_format = "$target attr-dict"


@irdl_op_definition
class ParametersOp(IRDLOperation):
    """
    Finds the parameters that modules use, if their name within the module matches
    `pattern`. Patterns are written as in `schedule.match`.
    """

    name = "schedule.parameters"

    pattern = prop_def(StringAttr)
    modules = operand_def(AnyOpType())
    result = result_def(AnyValueType())

    assembly_format = "$pattern `of` $modules attr-dict"


@irdl_op_definition
class ShardOp(IRDLOperation):
    """
    Requests that mesh axis `axis` splits dimension `dim` of parameters. With `run`, the
    devices get the elements in turn, `run` consecutive elements at a time.
    """

    name = "schedule.shard"

    parameters = operand_def(AnyValueType())
    dim = attr_def(IntegerAttr[I64])
    axis = attr_def(StringAttr)
    run = opt_attr_def(IntegerAttr[I64])

    assembly_format = "$parameters attr-dict"

    def verify_(self) -> None:
        if self.dim.value.data < 0 or (self.run and self.run.value.data < 1):
            raise VerifyException(
                "schedule.shard: `dim` counts from 0, and `run` from 1 element"
            )


@irdl_op_definition
class WholeOp(IRDLOperation):
    """
    Requests that mesh axis `axis` does not split parameters. All other axes may split
    the parameters.
    """

    name = "schedule.whole"

    parameters = operand_def(AnyValueType())
    axis = attr_def(StringAttr)

    assembly_format = "$parameters attr-dict"


@irdl_op_definition
class PlaceOp(IRDLOperation):
    """
    Requests how mesh axis `axis` places a value that the modules compute: split along
    dimension `dim`, or not split if `dim` is absent. `index` is the value's position
    among the values of a module that ops outside of the module use.
    """

    name = "schedule.place"

    modules = operand_def(AnyOpType())
    index = attr_def(IntegerAttr)
    axis = attr_def(StringAttr)
    dim = opt_attr_def(IntegerAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        numbers = (self.index, *([] if self.dim is None else [self.dim]))
        if any(number.value.data < 0 for number in numbers):
            raise VerifyException("schedule.place: `index` and `dim` count from 0")


@irdl_op_definition
class SplitLinearOp(IRDLOperation):
    """
    Requests that mesh axis `axis` splits linear layers. Each module must have one
    matrix product with a parameter. With `by = "columns"`, the axis splits the outputs
    of the product and the biases. With `by = "rows"`, it splits the inputs that the
    product sums over, and the biases stay whole.
    """

    name = "schedule.split_linear"

    modules = operand_def(AnyOpType())
    by = attr_def(StringAttr)
    axis = attr_def(StringAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        if self.by.data not in ("columns", "rows"):
            raise VerifyException(
                f"schedule.split_linear: by = {self.by}; write columns or rows"
            )


@irdl_op_definition
class MergeOp(IRDLOperation):
    """
    Merges several linear layers of each module that read the same value into one layer.

    `layers` are the paths of these layers in the module, and `merged` is the name of
    the merged layer. Their parameters become one argument, which the attribute
    `dist.repacked` describes. With `groups`, the outputs of each layer are cut into
    that many pieces, and the merged layer begins with the first pieces of all layers.
    Parts of layers of different sizes, such as the heads of grouped-query attention,
    can then be split alike.
    """

    name = "schedule.merge"

    modules = operand_def(AnyOpType())
    layers = attr_def(ArrayAttr[StringAttr])
    merged = attr_def(StringAttr)
    groups = opt_attr_def(IntegerAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        if len(set(self.layers.data)) < 2 or len(set(self.layers)) < len(self.layers):
            raise VerifyException(
                f"schedule.merge of {self.layers}: name two or more different layers"
            )
        if self.groups is not None and self.groups.value.data < 1:
            raise VerifyException("schedule.merge: `groups` counts from 1")


@irdl_op_definition
class StageOp(IRDLOperation):
    """Requests that a pipeline stage begins at each of the given modules."""

    name = "schedule.stage"

    modules = operand_def(AnyOpType())

    assembly_format = "$modules attr-dict"


@irdl_op_definition
class RecomputeOp(IRDLOperation):
    """
    Requests that the backward pass of modules recomputes values of their forward pass.

    `policy`, or the value of the knob, is a policy of `activation-checkpoint`. Modules
    must be calls of functions (`outline-repeats`). For groups from `schedule.find`, the
    intermediate values are recomputed (`full`).
    """

    name = "schedule.recompute"

    modules = operand_def(AnyOpType())
    knob = opt_operand_def(AnyParamType())
    policy = opt_attr_def(StringAttr)

    assembly_format = "$modules (`by` $knob^)? attr-dict"

    def verify_(self) -> None:
        if (self.knob is None) == (self.policy is None):
            raise VerifyException(
                "schedule.recompute takes a `policy`, or a knob that says it"
            )


@irdl_op_definition
class CudaGraphOp(IRDLOperation):
    """
    Asks packages to capture the modules as CUDA graphs. A GPU replays a graph without
    the host. Modules must be calls of functions (`outline-repeats`).
    """

    name = "schedule.cuda_graph"

    modules = operand_def(AnyOpType())

    assembly_format = "$modules attr-dict"


@irdl_op_definition
class OpaqueModulesOp(IRDLOperation):
    """
    Makes modules opaque: the import does not trace them, and they run as they are on
    each device's parts.

    `rule`, `keep`, `weights` (texts by the names of parameters), `flops` and `memory`
    are as in `distir.opaque`. The import of a model carries out this op; when the
    schedule is applied, the modules must already be ops of the program.
    """

    name = "schedule.opaque"

    modules = operand_def(AnyOpType())
    rule = attr_def(StringAttr)
    keep = opt_attr_def(StringAttr)
    weights = opt_attr_def(DictionaryAttr)
    flops = opt_attr_def(StringAttr)
    memory = opt_attr_def(StringAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        for name, dims in ({} if self.weights is None else self.weights.data).items():
            if not isinstance(dims, StringAttr):
                raise VerifyException(
                    f"schedule.opaque: weights has {dims} for {name!r}; expected a text "
                    f'such as "f _"'
                )


@irdl_op_definition
class AutocastOp(IRDLOperation):
    """
    Lets modules compute in the 16-bit element type `dtype`, as PyTorch's autocast does.
    This covers matrix products, convolutions, attention, and ops that only pass on the
    results of such ops. Norms, softmax, sums and losses stay in f32, and so do
    parameters.
    """

    name = "schedule.cast"

    modules = operand_def(AnyOpType())
    dtype = attr_def(StringAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        if self.dtype.data not in ("bf16", "f16"):
            raise VerifyException(
                f"schedule.cast: dtype = {self.dtype}; write bf16 or f16"
            )


@irdl_op_definition
class ExpectOp(IRDLOperation):
    """
    Expects exactly the given numbers of collectives, by kind, over mesh axis `axis` in
    the forward pass of each module: `collectives = {all_reduce = 2}`. No other
    collectives are allowed.

    With `backward`, the op checks the backward pass instead. The pass that distributes
    the program checks the numbers, per micro-batch, unless the axis has size 1.
    """

    name = "schedule.expect"

    modules = operand_def(AnyOpType())
    collectives = attr_def(DictionaryAttr)
    axis = attr_def(StringAttr)
    backward = opt_attr_def(UnitAttr)

    assembly_format = "$modules attr-dict"

    def verify_(self) -> None:
        for kind, count in self.collectives.data.items():
            if not isinstance(count, IntegerAttr) or count.value.data < 0:
                raise VerifyException(
                    f"schedule.expect: {kind} = {count} is no number of collectives"
                )


@irdl_op_definition
class KnobOp(IRDLOperation):
    """
    A tunable value, chosen from `values` when the schedule is applied
    (`apply-schedule{set=}`). A single value need not be chosen.

    If the knob depends on earlier knobs, `values` has one list for each combination of
    their values. Combinations are in row-major order: the value of the last operand
    changes the fastest, in the order of the operand's `all_values`.

    With `option`, tuning uses the knob's value for that option of `distribute`, or for
    the batch size. `option` is one of `OPTIONS`.

    ```mlir
    %batch = schedule.knob "batch" {values = [96, 192], option = "batch"}
    %ratio = schedule.knob "ratio" of %batch {values = [[0.25, 0.5], [0.5, 1.0]]}
    ```
    """

    name = "schedule.knob"

    knob = prop_def(StringAttr)
    earlier = var_operand_def(AnyParamType())
    values = attr_def(ArrayAttr)
    option = opt_attr_def(StringAttr)
    result = result_def(AnyParamType())

    assembly_format = "$knob (`of` $earlier^)? attr-dict"

    @property
    def cases(self) -> list[list[KnobValue]]:
        """
        Returns one list of values for each combination of the earlier knobs' values.
        """
        cases = list(self.values) if self.earlier else [self.values]
        return [
            [value for value in case if isinstance(value, KnobValue)]
            for case in cases
            if isinstance(case, ArrayAttr)
        ]

    @property
    def all_values(self) -> list[KnobValue]:
        """
        Returns the distinct values of all combinations, in order of first appearance.
        """
        return list(dict.fromkeys(value for case in self.cases for value in case))

    def verify_(self) -> None:
        what = f"schedule.knob {self.knob}"
        if self.earlier and not all(isinstance(v, ArrayAttr) for v in self.values):
            raise VerifyException(
                f"{what}: a knob that depends on others has a list of values for each "
                f"combination of theirs"
            )
        cases = list(self.values) if self.earlier else [self.values]
        given = sum(len(case) for case in cases if isinstance(case, ArrayAttr))
        if given != sum(map(len, self.cases)):
            raise VerifyException(f"{what}: a value is a number or a text")
        if not self.all_values:
            raise VerifyException(f"{what} has no values")
        _check_cases(what, self.earlier, len(self.cases))
        if self.option is not None and self.option.data not in OPTIONS:
            raise VerifyException(
                f"{what}: option = {self.option}; write one of {', '.join(OPTIONS)}"
            )


@irdl_op_definition
class RequireOp(IRDLOperation):
    """
    Restricts the combinations of the knobs' values. `holds` has one entry per
    combination, true if the combination is allowed, in row-major order: the value of
    the last knob changes the fastest.

    ```mlir
    schedule.require %batch, %ratio {holds = [true, true, true, false]}
    ```
    """

    name = "schedule.require"

    knobs = var_operand_def(AnyParamType())
    holds = attr_def(ArrayAttr[IntegerAttr])

    assembly_format = "$knobs attr-dict"

    def verify_(self) -> None:
        _check_cases(self.name, self.knobs, len(self.holds))


def _check_cases(what: str, knobs: Sequence[SSAValue], count: int) -> None:
    """
    Raises VerifyException unless `knobs` are knobs and `count` is the number of
    combinations of their values.
    """
    owners = [knob.owner for knob in knobs]
    if not all(isinstance(owner, KnobOp) for owner in owners):
        raise VerifyException(f"{what} depends on knobs, which schedule.knob gives")
    sizes = [len(o.all_values) for o in owners if isinstance(o, KnobOp)]
    if prod(sizes) != count:
        raise VerifyException(
            f"{what} has {count} cases, but the knobs that it depends on have "
            f"{' x '.join(map(str, sizes))} combinations"
        )


ScheduleDialect = Dialect(
    "schedule",
    [
        MatchOp,
        FirstOp,
        FindOp,
        NodeOp,
        ConstantOp,
        FoundOp,
        FuseOp,
        ReplaceOp,
        KernelOp,
        DecomposeOp,
        ParametersOp,
        ShardOp,
        WholeOp,
        PlaceOp,
        SplitLinearOp,
        MergeOp,
        StageOp,
        RecomputeOp,
        CudaGraphOp,
        OpaqueModulesOp,
        AutocastOp,
        ExpectOp,
        KnobOp,
        RequireOp,
    ],
)
