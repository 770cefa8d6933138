"""
The `schedule` dialect: how a program is to run, written by a user beside the program.

A schedule is the body of an `xdsl.dialects.transform` `named_sequence`, whose argument is a
handle of the whole program. Its ops take and return handles: of modules of the model, of
parameters, of groups of ops, and of values that a user may still choose (knobs).
`apply-schedule` applies them.

```mlir
transform.named_sequence @schedule(%model: !transform.any_op) {
  %layers = schedule.match "encoder.layer.*" in %model
  %up = schedule.match "intermediate.dense" in %layers
  %weights = schedule.parameters "weight" of %up
  schedule.shard %weights {dim = 1 : i64, axis = "t"}
  transform.yield
}
```

On any op `schedule.by` says for messages where the user wrote it.
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
The attribute of an op of a schedule that says where the user wrote it: a file and a line.
"""

BACKENDS = ("eager", "inductor")
"""The ways in which a fused group can be run."""

CUDA_GRAPH = "cuda_graph"
"""The `dist.compiled` of functions that CUDA is to replay as one graph."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*", re.ASCII)

KnobValue = IntegerAttr | FloatAttr | StringAttr

OPTIONS = ("batch", "d", "t", "p", "k", "zero")
"""
What a knob can stand for in a distribution: options of `distribute`, and the size of the
batch.
"""


@irdl_op_definition
class MatchOp(IRDLOperation):
    """
    The modules whose path, below those of `root`, is `pattern`: parts are separated by
    dots; `*` stands for any text in a part, `**` for any number of parts. With `count`
    there must be that many modules. With `regex` the pattern is a regular expression that
    must match a whole path.
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
    The first of some modules, in the order of the program: as many as `amount`, or the
    knob, says if that is a whole number, or that fraction of them otherwise (rounded down).
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
    The groups of ops in modules that compute what the pattern does, as a handle of its own
    kind, which `fuse`, `replace`, `decompose` and `recompute` take. The pattern is a block
    of `schedule.node`s and `schedule.constant`s; its arguments stand for any values, its
    `schedule.found` for the value that a group computes. There must be a group, unless it
    is `optional`.

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
    An op of a pattern: its name, operands (the first ones, if the op of the program has
    more), and attributes `with` which it must have, explicitly or as ONNX's defaults. For
    an `onnx.Transpose`, `swaps = [-1, -2]` means that it exchanges these dimensions.
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
    """A constant of a pattern: all elements must be this number, whatever the shape."""

    name = "schedule.constant"

    value = prop_def(FloatAttr)
    result = result_def(AnyValueType())

    assembly_format = "$value attr-dict"


@irdl_op_definition
class FoundOp(IRDLOperation):
    """Ends a pattern with the value that a group computes."""

    name = "schedule.found"

    value = operand_def(AnyValueType())

    traits = traits_def(IsTerminator())
    assembly_format = "$value attr-dict"


@irdl_op_definition
class FuseOp(IRDLOperation):
    """
    Makes a function called `symbol` of each of these groups, which is run as one piece:
    with `backend` "inductor", PyTorch's compiler makes one kernel of it; with "eager" its
    ops run one by one.
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
    Replaces each of these groups by an operator of ONNX, with the group's inputs, in the
    order of the pattern's arguments, and these attributes (`with`). It is refused unless it
    computes what the group does.
    """

    name = "schedule.replace"

    groups = operand_def(AnyOpType())
    op = attr_def(StringAttr)
    having = opt_attr_def(DictionaryAttr, attr_name="with")

    assembly_format = "$groups attr-dict"


@irdl_op_definition
class KernelOp(IRDLOperation):
    """
    Replaces each of these groups by a user's kernel called `symbol`; the groups become its
    references. `distir.dialects.kernel` explains the properties of the function
    `implementation`. Without a `rule`, it follows from the group.
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
    """Replaces ops of these groups or modules that have a decomposition by it."""

    name = "schedule.decompose"

    target = operand_def(AnyOpType())

    assembly_format = "$target attr-dict"


@irdl_op_definition
class ParametersOp(IRDLOperation):
    """
    The parameters that modules use and whose name in their module is `pattern` (as in
    `schedule.match`).
    """

    name = "schedule.parameters"

    pattern = prop_def(StringAttr)
    modules = operand_def(AnyOpType())
    result = result_def(AnyValueType())

    assembly_format = "$pattern `of` $modules attr-dict"


@irdl_op_definition
class ShardOp(IRDLOperation):
    """
    Requests that mesh axis `axis` splits dimension `dim` of parameters, in runs of `run`
    elements if given.
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
    """Requests that mesh axis `axis` does not split parameters; other axes may."""

    name = "schedule.whole"

    parameters = operand_def(AnyValueType())
    axis = attr_def(StringAttr)

    assembly_format = "$parameters attr-dict"


@irdl_op_definition
class PlaceOp(IRDLOperation):
    """
    Requests what mesh axis `axis` does to a value that these modules compute: it splits
    dimension `dim`, or nothing of it. `index` counts the values of a module that others use.
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
    Requests that mesh axis `axis` splits linear layers: each module has one matrix product
    with a parameter. `by` says what of it is split: `columns`, the outputs, together with
    those of biases, or `rows`, the inputs that the product sums over; biases then stay
    whole.
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
    In each of these modules, merges linear layers that read the same value into one, called
    `merged`: `layers` are their paths in the module. Their parameters become one argument,
    which `dist.repacked` describes. With `groups` the outputs of each are cut into as many
    pieces, and the first pieces of all come first: parts of layers of different sizes, such
    as the heads of grouped-query attention, can be split alike.
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
    """Requests that a pipeline stage begins with each of these modules."""

    name = "schedule.stage"

    modules = operand_def(AnyOpType())

    assembly_format = "$modules attr-dict"


@irdl_op_definition
class RecomputeOp(IRDLOperation):
    """
    Requests that the backward of modules recomputes what it needs of their forward, by a
    policy of `activation-checkpoint`: `policy`, or the value of the knob. Modules must be
    calls of functions (`outline-repeats`). Of groups that `find` returns, the intermediate
    values are recomputed (`full`).
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
    Asks that packages capture each run of these modules as a CUDA graph, which GPUs replay
    without the host. Modules must be calls of functions (`outline-repeats`).
    """

    name = "schedule.cuda_graph"

    modules = operand_def(AnyOpType())

    assembly_format = "$modules attr-dict"


@irdl_op_definition
class AutocastOp(IRDLOperation):
    """
    Lets modules compute in an element type of 16 bits, `dtype`, as PyTorch's autocast does:
    products of matrices, convolutions, attention and what passes their results on; norms,
    softmax, sums and losses stay in f32, and so do parameters.
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
    Expects that the forward of each of these modules (or its `backward`) has exactly these
    numbers of collectives by kind over mesh axis `axis`, and no others: `collectives =
    {all_reduce = 2}`. What distributes the program checks it, per micro-batch, unless that
    axis has size 1.
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
    A value that is chosen when the schedule is applied (`apply-schedule{set=}`), one of
    `values`; if there is only one, it need not be chosen. For a knob that depends on
    earlier ones, `values` has a list for each combination of theirs, in row-major order:
    those of the last operand change the fastest, in the order of `all_values`.

    With `option`, one of `OPTIONS`, it is also that option of `distribute`, or the size of
    the batch, when the schedule is tuned.

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
        """Returns the values for each combination of the earlier knobs' values."""
        cases = list(self.values) if self.earlier else [self.values]
        return [
            [value for value in case if isinstance(value, KnobValue)]
            for case in cases
            if isinstance(case, ArrayAttr)
        ]

    @property
    def all_values(self) -> list[KnobValue]:
        """
        Returns the values that occur in any of the cases, in the order in which they first
        appear.
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
    Requires that knobs have values that go together: for each combination, in the order of
    `schedule.knob`, `holds` says whether they do.

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
    Refuses a number of cases that is not the number of combinations of knobs. Raises
    VerifyException.
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
        AutocastOp,
        ExpectOp,
        KnobOp,
        RequireOp,
    ],
)
