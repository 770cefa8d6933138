"""
Matrix products in 8-bit and 4-bit floats, with scales computed from the tensors in each
step. `use_float8` replaces products of activations and weights by `train.float8_linear`
or `train.block_linear` before differentiation. Afterwards, `expand_float8` replaces
these ops by ops that compute scales, round and multiply, which sharding rules can
split.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod

from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import ROLE, SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import PRODUCTS
from distir.dialects.tensors import element_type, known_shape, shape_of
from distir.dialects.train_ops.block_floats import (
    BLOCK_RECIPES,
    BlockLinearOp,
)
from distir.dialects.train_ops.checks import FLOATS
from distir.dialects.train_ops.float8 import (
    FORMATS,
    Float8LinearOp,
    Float8ProductOp,
    Float8ScaleOp,
    ToFloat8Op,
    float8_linear,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder
from distir.gradients.rules.block_floats import block_product, blocks_of
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    reachable_functions,
    return_op,
    scope_of,
)
from distir.transforms.precision.saved_float8 import REARRANGING, save_rounded_inputs

PARAMETER_VIEWS = frozenset({"onnx.Cast", "onnx.Identity", "onnx.Transpose"})
"""The names of ops that may be between a parameter and the product that uses it."""


def use_float8(module: ModuleOp, recipe: str, keep: Sequence[str] | None = None) -> int:
    """
    Computes products of activations and parameters in narrow floats, in place. Only
    products with parameters that are matrices are replaced. `recipe` is one of
    `RECIPES`. Products in scopes that match a pattern in `keep` stay unchanged. If
    `keep` is None, the model's head stays: the products that compute the program's
    results.

    Returns the number of replaced products. A product in a function is counted once,
    even if the function is called several times. Raises DistIRError if a pattern
    matches no product or if no product is replaced.
    """
    found: list[OnnxOp] = []
    for function in reachable_functions(module):
        roles = [ROLE.of(attributes) for attributes in argument_attributes(function)]
        found += [
            op
            for op in function.body.block.ops
            if isinstance(op, OnnxOp) and is_linear(op, roles)
        ]
    kept = heads(module) if keep is None else set[Operation]()
    for pattern in keep or ():
        own = {op for op in found if fnmatchcase(scope_of(op), pattern)}
        if not own:
            scopes = ", ".join(dict.fromkeys(map(scope_of, found)))
            raise DistIRError(
                f"float8: no matrix product has a scope that matches {pattern!r}; the scopes "
                f"of those with parameters are: {scopes or 'none'}"
            )
        kept |= own
    chosen = [op for op in found if op not in kept]
    if not chosen:
        raise DistIRError(
            "float8: the program has no product of activations and a matrix of parameters "
            "that could be computed in 8 bits, beside those that are kept; leave float8 out, "
            "or keep fewer"
        )
    kept_blocks: dict[object, list[SSAValue]] = {}
    for op in chosen:
        _replace(op, recipe, kept_blocks)
    return len(chosen)


def is_linear(op: OnnxOp, roles: Sequence[str | None]) -> bool:
    """Whether `op` multiplies activations by a matrix that is a parameter."""
    if op.name not in PRODUCTS or any(known_shape(v) is None for v in op.operands):
        return False
    if not isinstance(element_type(op.results[0]), FLOATS):
        return False
    a, b = op.operands[:2]
    if len(shape_of(a)) < 2 or len(shape_of(b)) != 2:
        return False
    if op.name == "onnx.Gemm" and (
        op.attribute("transA")
        or op.attribute("alpha") != 1
        or op.attribute("beta") != 1
    ):
        return False
    return is_parameter(b, roles) and not is_parameter(a, roles)


def is_parameter(value: SSAValue, roles: Sequence[str | None]) -> bool:
    """
    Whether `value` is a parameter, or computed from a parameter by ops in
    `PARAMETER_VIEWS`.
    """
    while not isinstance(value, BlockArgument):
        op = value.owner
        if not isinstance(op, Operation) or op.name not in PARAMETER_VIEWS:
            return False
        value = op.operands[0]
    return roles[value.index] == "parameter"


def heads(
    module: ModuleOp, results: Sequence[SSAValue] | None = None
) -> set[Operation]:
    """
    Returns the matrix products that compute `results`, by default the program's
    results, without a further matrix product in between.
    """
    found: set[Operation] = set()
    pending = list(return_op(entry_function(module)).operands)
    if results is not None:
        pending = list(results)
    seen = set(pending)
    while pending:
        op = pending.pop().owner
        if not isinstance(op, OnnxOp):
            continue
        if op.name in PRODUCTS:
            found.add(op)
            continue
        new = [v for v in op.operands if v not in seen]
        seen.update(new)
        pending += new
    return found


def _replace(op: OnnxOp, recipe: str, kept: dict[object, list[SSAValue]]) -> None:
    build = builder_before(op)
    a, b = op.operands[:2]
    bias = op.input(2) if op.name == "onnx.Gemm" else None
    if op.name == "onnx.Gemm" and op.attribute("transB"):
        b = build.transposed(b)
    if recipe in BLOCK_RECIPES:
        y = build.result(_block_linear(build, op, a, b, recipe, kept))
    else:
        y = build.result(float8_linear(a, b, recipe, "e4m3", "e4m3"))
    if bias is not None:
        y = build.onnx("Add", y, bias)
    y.name_hint = op.results[0].name_hint
    op.results[0].replace_all_uses_with(y)
    Rewriter.erase_op(op)


def _block_linear(
    build: GradientBuilder,
    op: OnnxOp,
    a: SSAValue,
    b: SSAValue,
    recipe: str,
    kept: dict[object, list[SSAValue]],
) -> BlockLinearOp:
    """
    Returns the product of `a` and `b` in blocks, in place of `op`. Builds the blocks of
    the transposed `a` for the gradient of `b`; `kept` has them for values that earlier
    products of the function multiply. Raises DistIRError if the sizes of the product
    are no whole blocks.
    """
    size = BLOCK_RECIPES[recipe].size
    *rows, length = shape_of(a)
    for what, n in (("inputs", length), ("outputs", shape_of(b)[1])):
        if n % size:
            raise DistIRError(
                f"float8: {describe(op)} has {n} {what}, which are no whole blocks of "
                f"{size} for {recipe}; keep it as it is (keep={scope_of(op) or '*'})"
            )
    if a not in kept:
        # Where rows are no whole blocks, the gradient reports it; a forward does not care.
        kept[a] = [] if prod(rows) % size else _kept(build, a, recipe)
    shape = (*rows, shape_of(b)[1])
    type_ = TensorType(element_type(a), shape)
    return BlockLinearOp(a, b, kept[a], recipe=recipe, y=type_)


def _kept(build: GradientBuilder, a: SSAValue, recipe: str) -> list[SSAValue]:
    """Builds the blocks of the transposed matrix `a` along its rows."""
    return blocks_of(build, build.transposed(build.matrix(a)), recipe, 1)


def expand_float8(module: ModuleOp) -> None:
    """
    Replaces `train.float8_linear` and `train.block_linear` by ops that compute scales,
    round and multiply, in place. If several products of a function use a value, or
    equal views of it, in the same format with scales along the same dimension, the
    value is scaled and rounded once. Inputs of products are kept in 8 bits until
    the backward pass where nothing else needs them.
    """
    for function in reachable_functions(module):
        rounded: Rounded = {}
        for op in list(function.body.block.ops):
            if isinstance(op, Float8LinearOp):
                _expand(op, rounded)
            elif isinstance(op, BlockLinearOp):
                _expand_blocks(op, rounded)
        _share_scales(function)
    save_rounded_inputs(module)


Rounded = dict[tuple[object, str, int | None], Sequence[SSAValue]]
"""
The results of rounding a value, by a key of the value, the name of the format and the
dimension of the scales.
"""


def _expand(op: Float8LinearOp, rounded: Rounded) -> None:
    build = builder_before(op)
    factors: list[SSAValue] = []
    scales: list[SSAValue] = []
    inner = (len(shape_of(op.a)) - 1, 0)
    for x, name, dim in zip((op.a, op.b), op.formats, inner, strict=True):
        axis = None if op.scaling.data == "tensor" else dim
        key = (_shown(x), name, axis)
        if key not in rounded:
            sizes = list(shape_of(x))
            if axis is not None:
                sizes[axis] = 1
            type_ = TensorType(f32, [] if axis is None else sizes)
            scale = build.result(Float8ScaleOp(x, format=name, axis=axis, scale=type_))
            narrow = TensorType(FORMATS[name][0], shape_of(x))
            rounded[key] = build.result(ToFloat8Op(x, scale, y=narrow)), scale
        factor, scale = rounded[key]
        factors.append(factor)
        scales.append(scale)
    _finish(op, build.result(Float8ProductOp(*factors, *scales, y=op.y.type)))


def _expand_blocks(op: BlockLinearOp, rounded: Rounded) -> None:
    build, name = builder_before(op), op.recipe.data
    is_square = op.format.has_square_weights
    factors: list[Sequence[SSAValue]] = []
    for x, axis, square in (
        (op.a, len(shape_of(op.a)) - 1, False),
        (op.b, 0, is_square),
    ):
        key = (_shown(x), name, axis)
        if key not in rounded:
            rounded[key] = blocks_of(build, x, name, axis, square=square)
        factors.append(rounded[key])
    type_ = op.y.type
    assert isinstance(type_, TensorType)
    kept = list(op.kept)
    _finish(
        op, block_product(build, factors[0], factors[1], name, type_, square=is_square)
    )
    for value in kept:
        _erase_unused(value)


def _share_scales(function: FuncOp) -> None:
    """
    Leaves one scale for all views of a tensor whose blocks need a scale of the tensor.
    The largest magnitude of a tensor is that of its transpose.
    """
    known: dict[tuple[SSAValue, str], SSAValue] = {}
    for op in list(function.body.block.ops):
        if isinstance(op, Float8ScaleOp) and op.format.data in BLOCK_RECIPES:
            value = op.x
            while (
                isinstance(owner := value.owner, Operation)
                and owner.name in REARRANGING
            ):
                value = owner.operands[0]
            scale = known.setdefault((value, op.format.data), op.scale)
            if scale is not op.scale:
                op.scale.replace_all_uses_with(scale)
                _erase_unused(op.scale)


def _finish(op: Float8LinearOp | BlockLinearOp, y: SSAValue) -> None:
    """Uses `y` in place of the result of `op`, and erases `op`."""
    y.name_hint = op.y.name_hint
    op.y.replace_all_uses_with(y)
    Rewriter.erase_op(op)


def _erase_unused(value: SSAValue) -> None:
    """Erases the ops that compute `value` and that nothing uses."""
    op = value.owner
    if not isinstance(op, Operation) or op.parent is None:
        return
    if not any(result.uses for result in op.results):
        operands = list(op.operands)
        Rewriter.erase_op(op)
        for operand in operands:
            _erase_unused(operand)


def _shown(value: SSAValue) -> object:
    """
    Returns a key that is equal for two views of one value if the views have the same
    shape and order of elements. An example is the input of several products, which the
    gradients of these products view in the same way.
    """
    views: list[object] = []
    while isinstance(op := value.owner, Operation) and op.name in REARRANGING:
        said = {**op.properties, **op.attributes}
        said.pop(SCOPE, None)
        views.append((op.name, op.results[0].type, frozenset(said.items())))
        value = op.operands[0]
    return value, tuple(views)


def builder_before(before: Operation) -> GradientBuilder:
    """Returns a builder that inserts ops before the op `before`."""
    block = before.parent_block()
    assert block is not None
    return GradientBuilder(
        lambda op: block.insert_op_before(op, before), before.attributes.get(SCOPE)
    )
