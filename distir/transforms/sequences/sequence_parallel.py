"""
Megatron's sequence parallelism: requests to split sequences between blocks of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.dist_attributes import GRADIENT_OF, SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.normalization import NormalizingOp
from distir.errors import DistIRError, one_of
from distir.gradients.call_pairs import FORWARD, saved_values
from distir.program import (
    LOSS,
    argument_attributes,
    describe,
    entry_function,
    functions,
    result_names,
    result_roles,
    return_op,
)
from distir.sharding.mesh import Mesh
from distir.sharding.placement import SplitPlacement, placement_in
from distir.sharding.rule import rule_for
from distir.sharding.rules.builder import constant_operand
from distir.transforms.sequences.feature_dims import FeatureDims, Origin

RESIDUALS = ("parts", "whole")


def _activations(op: Operation) -> tuple[int, ...]:
    """
    Returns the indices of the activations among the operands of a normalisation. For
    the gradient of a normalisation, the gradient of the result comes first, then the
    normalised activation. Returns an empty tuple if `op` is neither.
    """
    if isinstance(op, NormalizingOp):
        return op.ACTIVATIONS
    named = ("onnx.LayerNormalization", "onnx.RMSNormalization")
    return (0,) if op.name in named else ()


def _root_mean_square_source(op: Operation) -> SSAValue | None:
    """
    Returns x if `op` computes `mean(x^2)` over the last dimension, the start of an RMS
    norm that is written as several ops. Returns None for any other op.
    """
    if op.name != "onnx.ReduceMean" or not isinstance(op, OnnxOp):
        return None
    axes = constant_operand(op, 1)
    rank = len(shape_of(op.operands[0].type))
    if axes is None or [int(a) % rank for a in axes.flat] != [rank - 1]:
        return None
    square = op.operands[0].owner
    if not isinstance(square, OnnxOp):
        return None
    if square.name == "onnx.Pow":
        exponent = constant_operand(square, 1)
        if exponent is not None and exponent.size == 1 and exponent.item() == 2:
            return square.operands[0]
    if square.name == "onnx.Mul" and square.operands[0] is square.operands[1]:
        return square.operands[0]
    return None


def _norms_of_heads(module: ModuleOp) -> set[Operation]:
    """
    Returns the normalisations of parts of a token's features, such as heads, and the
    gradients of these normalisations. They are inside of blocks, where features are
    split instead of sequences. A dimension of size 1 before the features also counts as
    heads.
    """
    features = FeatureDims(module)
    found: set[Operation] = set()
    for op in module.walk():
        if indices := _activations(op):
            index = indices[:2][-1]
        elif _root_mean_square_source(op) is not None:
            index = 0
        else:
            continue
        x, rule = op.operands[index], rule_for(op)
        origins = [
            origin
            for dim, origin in zip(rule.operands[index], features.of(x), strict=True)
            if any(rule.factors[f].kind == "parallel" for f in dim)
        ]
        if Origin.FEATURES in origins or shape_of(x.type)[-2:-1] == (1,):
            found.add(op)
    return found


@dataclass
class SplitSequence(RewritePattern):
    """
    Requests a split along the sequence for the inputs and outputs of normalisations.
    """

    mesh: Mesh
    axis: str
    of_heads: set[Operation]
    found: int = 0

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        if op in self.of_heads:
            return
        if indices := _activations(op):
            for index in indices:
                self._split(op.operands[index], op, op, rewriter)
            behind = op.next_op
            if behind is not None:
                self._split(op.results[0], op, behind, rewriter)
            return
        source = _root_mean_square_source(op)
        if source is not None:
            square = op.operands[0].owner
            assert isinstance(square, Operation)
            self._split(source, op, square, rewriter)

    def _split(
        self,
        source: SSAValue,
        norm: Operation,
        first: Operation,
        rewriter: PatternRewriter,
    ) -> None:
        """
        Requests a split of `source` before the op `first`, and makes all later ops use
        the split value: the normalisation, which may consist of several ops, and the
        residual branch.
        """
        constrain = self._constrain(source, norm)
        if constrain is None:
            return
        rewriter.insert(constrain, InsertPoint.before(first))
        for use in list(source.uses):
            user = use.operation
            if user is first or (
                user is not constrain
                and user.parent_block() is first.parent_block()
                and constrain.is_before_in_block(user)
            ):
                user.operands[use.index] = constrain.result

    def _constrain(self, source: SSAValue, op: Operation) -> ConstrainOp | None:
        """
        Returns the op that requests a split of `source`, or None if `source` has no
        dimension for the sequence. Raises DistIRError if the mesh axis does not divide
        the length of the sequence.
        """
        shape = shape_of(source.type)
        if len(shape) < 2:
            return None
        if shape[-2] % self.mesh.size(self.axis):
            raise DistIRError(
                f"sequence-parallel: {describe(op)} works on a sequence of {shape[-2]}, "
                f"which axis {self.axis!r} of size {self.mesh.size(self.axis)} does not "
                f"divide"
            )
        self.found += 1
        return _split_sequence(source, op, self.mesh, self.axis)


def _split_sequence(
    source: SSAValue, op: Operation, mesh: Mesh, axis: str
) -> ConstrainOp:
    """
    Returns the op that requests a split of `source` along its sequence. `op` is the op
    that computes or uses `source`.
    """
    rank = len(shape_of(source.type))
    layout = Layout(mesh.name).with_dim(rank - 2, [Shard(axis)], rank)
    constrain = ConstrainOp(source, layout, [axis])
    if SCOPE in op.attributes:
        constrain.attributes[SCOPE] = op.attributes[SCOPE]
    return constrain


def _computed_in_parts(forward: FuncOp, axis: str) -> set[SSAValue]:
    """
    Follows the ops of `forward` from the inputs of normalisations to the next
    contractions. Returns the values on the way that have the same sequence length as
    the inputs.
    """
    found: set[SSAValue] = set()
    lengths: set[int] = set()
    for op in forward.body.block.ops:
        if isinstance(op, ConstrainOp) and op.fixes(axis):
            before_last = SplitPlacement(len(shape := shape_of(op.result.type)) - 2)
            # The axis may also split other things than sequences, such as experts.
            if placement_in(op.layout.data, axis) == before_last:
                found.add(op.result)
                lengths.add(shape[-2])
        elif any(v in found for v in op.operands) and not rule_for(op).flops:
            found.update(
                r
                for r in op.results
                if len(shape_of(r.type)) > 1 and shape_of(r.type)[-2] in lengths
            )
    return found


def keep_parts(module: ModuleOp, mesh: Mesh, axis: str) -> None:
    """
    Requests that layers keep the values of normalisations for the backward pass in
    parts, instead of whole on each device.
    """
    known = functions(module)
    kept: dict[str, set[int]] = {}
    for backward in known.values():
        name = backward.attributes.get(FORWARD)
        if isinstance(name, SymbolRefAttr):
            indices = kept.setdefault(name.string_value(), set())
            indices |= {i for kind, i in saved_values(backward) if kind == "result"}
    for name, indices in kept.items():
        returned = return_op(known[name])
        parts = _computed_in_parts(known[name], axis)
        for i in sorted(indices):
            value = returned.operands[i]
            if value in parts and isinstance(value.owner, Operation):
                constrain = _split_sequence(value, value.owner, mesh, axis)
                Rewriter.insert_op(constrain, InsertPoint.before(returned))
                returned.operands[i] = constrain.result
    _keep_parts_behind_loss(entry_function(module), mesh, axis)


def _keep_parts_behind_loss(entry: FuncOp, mesh: Mesh, axis: str) -> None:
    """
    Requests that the entry function keeps values of normalisations in parts if ops
    after the loss use these values. An example is the result of the last normalisation
    before the logits.
    """
    loss = _end_of_forward(entry)
    if loss is None:
        return
    for value in _computed_in_parts(entry, axis):
        owner = value.owner
        if not isinstance(owner, Operation) or not owner.is_before_in_block(loss):
            continue
        later = [
            use
            for use in value.uses
            if loss.is_before_in_block(use.operation)
            and not isinstance(use.operation, ReturnOp)
        ]
        if not later:
            continue
        constrain = _split_sequence(value, owner, mesh, axis)
        Rewriter.insert_op(constrain, InsertPoint.after(loss))
        for use in later:
            use.operation.operands[use.index] = constrain.result


def _end_of_forward(entry: FuncOp) -> Operation | None:
    """
    Returns the op of the entry function that ends the forward pass of a training step:
    the op of the loss or, if the caller computes the loss, the op of the last result
    whose gradient is given. Returns None if there is no such op.
    """
    roles, names = result_roles(entry), result_names(entry)
    taken = {GRADIENT_OF.of(own) for own in argument_attributes(entry)}
    ends = [
        value.owner
        for value, role, name in zip(
            return_op(entry).operands, roles, names, strict=True
        )
        if (role == LOSS or name in taken) and isinstance(value.owner, Operation)
    ]
    last: Operation | None = None
    for op in ends:
        if last is None or last.is_before_in_block(op):
            last = op
    return last


def split_sequences(module: ModuleOp, mesh: Mesh, axis: str, residuals: str) -> None:
    """
    Requests a split along the sequence for inputs and outputs of normalisations, over
    the mesh axis `axis`. `residuals` is one of `RESIDUALS` and tells whether layers
    keep residuals in parts. Raises DistIRError if the program has no normalisation, or
    if the axis does not divide a sequence.
    """
    one_of("way to keep residuals", residuals, RESIDUALS, "sequence-parallel")
    pattern = SplitSequence(mesh, axis, _norms_of_heads(module))
    PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(module)
    if not pattern.found:
        raise DistIRError(
            "sequence-parallel: the program has no normalization to split"
        )
    if residuals == "parts":
        keep_parts(module, mesh, axis)
