"""Expert parallelism: distributes experts over mesh axes and sends tokens to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd, prod

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.dist_attributes import RAGGED, SCOPE
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import element_type, rank_of, shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedOp,
    GroupedProductGradOp,
)
from distir.dialects.train_ops.quantized_rows import CONVERSIONS
from distir.errors import DistIRError, listed, one_of
from distir.planning.annotations import axis_mesh, requested_layout
from distir.planning.distribution.own_axes import own_sizes
from distir.planning.requests import request_each
from distir.program import (
    BATCH_ROLES,
    argument_names,
    argument_roles,
    arguments_of,
    describe,
    entry_function,
    parameters_of_states,
    reachable_functions,
)
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Rule, rule_for
from distir.transforms.expert_shards import deal_out_experts

DISPATCHES = ("auto", "gather", "all-to-all")
"""
The ways in which tokens reach experts on other devices. With `auto` the planner
chooses.
"""


def expert_degrees(modules: Sequence[ModuleOp], devices: int) -> tuple[int, ...]:
    """
    Returns the degrees of expert parallelism that programs allow on `devices` devices.
    For mixtures of experts, these are all common divisors of `devices` and the numbers
    of experts; else the only degree is 1.
    """
    sizes = {
        shape_of(argument.type)[0]
        for module in modules
        for argument in _Experts(module).matrices
    }
    # Grouped products of one shard have no dimension of experts yet.
    sizes |= {op.experts.value.data for module in modules for op in _places(module)}
    sizes |= {size for module in modules for size in own_sizes(module, "e")}
    if not sizes:
        return (1,)
    most = gcd(devices, *sizes)
    return tuple(e for e in range(1, most + 1) if most % e == 0)


def limits_tokens(module: ModuleOp) -> bool:
    """
    Whether a program limits the number of tokens that an expert takes from a sequence.
    A device then needs whole sequences.
    """
    return any(not op.is_dropless for op in _places(module))


def split_experts(
    module: ModuleOp, axes: Sequence[str], token_dispatch: str = "auto"
) -> None:
    """
    Requests that the experts of a sequential program are distributed over the mesh axes
    `axes` together, as the documentation of the pass `expert-parallel` describes. The
    program must already request the split of its inputs over the axes that split the
    batch or sequences. `token_dispatch` is one of `DISPATCHES`. Raises DistIRError if
    the program has no experts, or if they cannot be distributed evenly.
    """
    one_of("way of tokens to experts", token_dispatch, DISPATCHES, "expert-parallel")
    mesh = axis_mesh(module, axes[0])
    devices = prod(mesh.size(axis) for axis in axes)
    limited = [op for op in _places(module) if not op.is_dropless]
    if len(axes) > 1 and limited:
        raise DistIRError(
            f"expert-parallel: {describe(limited[0])} limits the tokens that an expert takes "
            f"of a sequence, so that a sequence cannot be in parts there; deal out the experts "
            f"over {axes[0]!r} alone (expert_axes=e)"
        )
    deal_out_experts(module, devices)
    found = _Experts(module)
    if not found.parameters:
        if len(axes) == 1 and own_sizes(module, axes[0]):
            return  # a module sends the tokens to its experts itself
        raise DistIRError(
            "expert-parallel: the program has no mixture of experts: no product has a "
            "parameter with one matrix for each of several experts; leave out -e"
        )
    function = entry_function(module)
    states = parameters_of_states(function)
    names, types = argument_names(function), function.function_type.inputs.data
    asked: dict[int, Layout] = {}
    for i in [
        *found.parameters,
        *(s for s, p in states.items() if p in found.parameters),
    ]:
        shape = shape_of(types[i])
        owner = states.get(i, i)
        if i != owner and shape != shape_of(types[owner]):
            continue
        if shape[0] % devices:
            over = [f"axis {axis!r} of size {mesh.size(axis)}" for axis in axes]
            degrees = " x ".join(f"-{axis}" for axis in axes)
            raise DistIRError(
                f"expert-parallel: the {shape[0]} experts of {names[i]!r} cannot be dealt out "
                f"evenly over {listed(over)}; choose an {degrees} that divides {shape[0]}"
            )
        asked[i] = _split(mesh, axes, 0, len(shape))
    request_each(function, asked, axes, "expert parallelism")
    for op, matrices, factor in found.products:
        _send_tokens(op, matrices, factor, mesh, axes)
    _bring_tokens(module, token_dispatch, mesh, axes)


def _split(mesh: Mesh, axes: Sequence[str], dim: int, rank: int) -> Layout:
    """
    Returns a layout of a tensor of rank `rank` that splits dimension `dim` over `axes`.
    """
    return Layout(mesh.name).with_dim(dim, tuple(map(Shard, axes)), rank)


def _bring_tokens(
    module: ModuleOp, token_dispatch: str, mesh: Mesh, axes: Sequence[str]
) -> None:
    """
    Requests layouts that make tokens travel in the way `token_dispatch`, one of
    `DISPATCHES`. Raises DistIRError if `token_dispatch` is not `auto` and the program
    has no op `train.expert_places`.
    """
    places = _places(module)
    if token_dispatch == "auto":
        token_dispatch = _shorter(places, prod(mesh.size(axis) for axis in axes))
    elif not places:
        raise DistIRError(
            f"expert-parallel: token_dispatch={token_dispatch} says how tokens come to experts "
            f"that are ops of train (train.expert_places), but the program has none; leave it "
            f"out"
        )
    if token_dispatch == "gather":
        for op in list(module.walk()):
            if isinstance(op, DispatchOp):
                _constrain(op, 0, Layout(mesh.name), axes)
    elif token_dispatch == "all-to-all":
        _exchange_rows(module, mesh, axes, all(op.is_dropless for op in places))


def _shorter(places: Sequence[ExpertPlacesOp], devices: int) -> str:
    """
    Returns the exchange of tokens that sends fewer bytes between `devices` devices:
    "all-to-all", or "auto" to let the planner choose.

    A device with n tokens, each of which chooses k experts, sends about k n (1 -
    1/devices) tokens to experts. If all tokens are gathered, the device receives n
    (devices - 1) tokens. Results travel back in the same way. The answer is "auto" if
    gathering sends less, or if devices would have different numbers of groups of
    tokens. It is also "auto" if experts have a capacity: all places are then sent, used
    or not, and the planner knows their bytes.
    """
    shapes = [shape_of(op.ids) for op in places]
    is_dropless = all(op.is_dropless for op in places)
    fits = is_dropless and all(s[0] % devices == 0 for s in shapes)
    if not shapes or not fits:
        return "auto"
    return "all-to-all" if max(s[2] for s in shapes) < devices else "auto"


def _exchange_rows(
    module: ModuleOp, mesh: Mesh, axes: Sequence[str], ragged: bool
) -> None:
    """
    Requests that each device dispatches and combines its own tokens. With `ragged`,
    empty rows are not sent.
    """
    shards, groups = _split(mesh, axes, 0, 4), _of_tokens(module, mesh, axes)
    for op in list(module.walk()):
        if isinstance(op, DispatchOp):
            asked = _requested(op.result, groups, axes, op)
            Rewriter.insert_op(asked, InsertPoint.after(op))
            op.result.replace_uses_with_if(
                asked.result, lambda use, asked=asked: use.operation is not asked
            )
            requests = [asked]
        elif isinstance(op, CombineOp | CombineWeightsGradOp):
            requests = [_constrain(*_narrow(op), groups, axes)]
        elif isinstance(op, GroupedProductGradOp):
            # Its operands are no matrices of experts, so that nothing is requested yet.
            of_rows = [i for i, v in enumerate(op.operands) if rank_of(v.type) == 4]
            requests = [_constrain(op, i, shards, axes) for i in of_rows]
        elif isinstance(op, GroupedOp) and isinstance(
            op.operands[0].owner, ConstrainOp
        ):
            requests = [op.operands[0].owner]
        else:
            continue
        for asked in requests:
            # Values that the forward keeps for the backward need not be sent again in
            # the backward.
            asked.source.replace_uses_with_if(
                asked.result, lambda use: isinstance(use.operation, ReturnOp)
            )
            if ragged:
                asked.attributes[RAGGED] = UnitAttr()


def _of_tokens(module: ModuleOp, mesh: Mesh, axes: Sequence[str]) -> Layout:
    """
    Returns the layout of rows of experts, [shards, groups, places, width]. The groups
    are split over `axes` in the same way as the tokens of activations: over the axes of
    the batch, and within each sample over the remaining axes.
    """
    function = entry_function(module)
    samples, before = 1, Layout(mesh.name)
    for argument in arguments_of(function):
        if argument.role in BATCH_ROLES and shape_of(argument.type):
            samples = shape_of(argument.type)[0]
            before = requested_layout(argument.attributes) or before
            break
    of_batch = {shard.axis for shard in before.dim(0)}
    runs = {shard.axis: shard.run for shard in before.dim(1)}
    own = samples // prod(mesh.size(axis) for axis in of_batch)
    groups = max((shape_of(op.ids)[0] for op in _places(module)), default=samples)
    length, shards = groups // samples, list[Shard]()
    for axis in axes:
        if axis in of_batch:
            shards.append(Shard(axis))
            continue
        # Parts of sequences, which lie next to each other in one sample only.
        length, rest = divmod(length, mesh.size(axis))
        run = runs.get(axis)
        if run is None and own > 1 and length and not rest:
            run = length
        shards.append(Shard(axis, run))
    return Layout(mesh.name).with_dim(1, shards, 4)


def _places(module: ModuleOp) -> list[ExpertPlacesOp]:
    return [op for op in module.walk() if isinstance(op, ExpertPlacesOp)]


def _narrow(op: Operation) -> tuple[Operation, int]:
    """
    Finds the value with the narrowest element type that holds the rows of experts that
    `op` combines: the value before a cast to a wider type, so that fewer bytes travel.
    Returns the op that takes this value, and the index of its operand.
    """
    cast = op.operands[0].owner
    if isinstance(cast, Operation) and cast.name == "onnx.Cast":
        before, after = (
            bytes_per_element(element_type(v))
            for v in (cast.operands[0], op.operands[0])
        )
        if before < after and not isinstance(cast.operands[0].owner, ConstrainOp):
            return cast, 0
    return op, 0


def _requested(
    value: SSAValue, layout: Layout, axes: Sequence[str], op: Operation
) -> ConstrainOp:
    """
    Returns a `dist.constrain` op that requests the layout `layout` of `value` on
    `axes`. The new op belongs to the same module of the model as `op`.
    """
    constrain = ConstrainOp(value, layout, axes)
    if SCOPE in op.attributes:
        constrain.attributes[SCOPE] = op.attributes[SCOPE]
    return constrain


def _constrain(
    op: Operation, index: int, layout: Layout, axes: Sequence[str]
) -> ConstrainOp:
    """
    Requests the layout of operand `index` of `op` on `axes`. Returns the inserted
    `dist.constrain` op.
    """
    constrain = _requested(op.operands[index], layout, axes, op)
    Rewriter.insert_op(constrain, InsertPoint.before(op))
    op.operands[index] = constrain.result
    return constrain


def _send_tokens(
    op: Operation, matrices: int, factor: int, mesh: Mesh, axes: Sequence[str]
) -> None:
    """
    Requests that all operands of a product, except the experts' matrices, are
    distributed like the experts. Tokens are then sent to experts, and experts are never
    sent to tokens. Operand `matrices` of `op` holds the experts' matrices, and `factor`
    is the factor of the op's rule that numbers the experts.
    """
    rule = rule_for(op)
    for i in range(len(op.operands)):
        if i == matrices:
            continue
        dims = rule.operands[i]
        dim = next(d for d, factors in enumerate(dims) if factor in factors)
        _constrain(op, i, _split(mesh, axes, dim, len(dims)), axes)


class _Experts:
    """
    The matrix products of a program that have a separate matrix for each expert.

    - `parameters`: the indices of the entry function's arguments that hold these
      matrices;
    - `products`: for each product, its op, the index of the operand that holds the
      matrices, and the factor of the op's rule that numbers the experts (or shards of
      them). All operands and results have a dimension of this factor, so that a device
      can compute the product for some of the experts alone.
    """

    def __init__(self, module: ModuleOp):
        self.entry = entry_function(module)
        self.calls: dict[str, list[CallOp]] = {}
        functions = reachable_functions(module)
        for function in functions:
            for op in function.body.block.ops:
                if isinstance(op, CallOp):
                    self.calls.setdefault(op.callee.string_value(), []).append(op)
        self.roles = argument_roles(self.entry)
        self.parameters: dict[int, None] = {}
        self.products: list[tuple[Operation, int, int]] = []
        for function in functions:
            for op in function.body.block.ops:
                self._add(op)

    @property
    def matrices(self) -> list[SSAValue]:
        """The arguments of the entry function that hold the experts' matrices."""
        return [self.entry.body.block.args[i] for i in self.parameters]

    def _add(self, op: Operation) -> None:
        rule = rule_for(op)
        if not rule.flops:
            return
        for i, (value, dims) in enumerate(zip(op.operands, rule.operands, strict=True)):
            if len(dims) < 3 or not dims[0] or not _is_everywhere(dims[0][0], rule):
                continue
            # The kernel of a convolution over groups of channels has a window besides, and
            # every sample goes to all groups.
            inner = (rule.factors[factor] for dim in dims[1:] for factor in dim)
            if any(factor.kind == "replicate" for factor in inner):
                continue
            arguments = list(self._arguments(value))
            if arguments and all(self.roles[a] == "parameter" for a in arguments):
                self.parameters |= dict.fromkeys(arguments)
                self.products.append((op, i, dims[0][0]))
                return

    def _arguments(self, value: SSAValue) -> Iterator[int]:
        """
        Yields the indices of the entry function's arguments from which `value` is
        computed. Only ops that keep the first dimension are followed.
        """
        if isinstance(value, BlockArgument):
            function = value.owner.parent_op()
            assert isinstance(function, FuncOp)
            if function is self.entry:
                yield value.index
            for call in self.calls.get(function.sym_name.data, []):
                yield from self._arguments(call.operands[value.index])
            return
        op = value.owner
        assert isinstance(op, Operation)
        source = op.operands[0] if op.operands else None
        if source is None or isinstance(op, CallOp) or rank_of(source.type) < 2:
            return
        rule = rule_for(op)
        first = rule.results[0][0] if rule.results and rule.results[0] else ()
        if first and not rule.flops and rule.operands[0][0] == first:
            # Scales of quantised matrices are split with them.
            kept = op.operands if isinstance(op, CONVERSIONS) else [source]
            for value in kept:
                yield from self._arguments(value)


def _is_everywhere(factor: int, rule: Rule) -> bool:
    """
    Whether `factor` is parallel and belongs to a dimension of every operand and result.
    """
    return rule.factors[factor].kind == "parallel" and all(
        any(factor in dim for dim in dims) for dims in (*rule.operands, *rule.results)
    )
