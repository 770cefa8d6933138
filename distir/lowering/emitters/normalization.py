"""Emitters of normalisations and losses."""

from __future__ import annotations

from distir.dialects.train_ops.normalization import LayerNormGradOp
from distir.lowering.emitter import Call, torch_emitter


def _normalized(call: Call) -> tuple[int, ...] | None:
    """
    Returns the shape of the normalised dimensions if PyTorch's own function computes
    the same as the op, else None.
    """
    axis = call.attribute("axis") % max(call.rank(), 1)
    shape = call.shape()[axis:]
    fits = all(
        call.shape(i) == shape and call.element(i) == call.element(0)
        for i in range(1, call.count)
        if call.has(i)
    )
    return shape if fits and min(shape) > 0 else None


@torch_emitter("onnx.LayerNormalization")
def layer_normalization(call: Call) -> str:
    shape, stash = _normalized(call), call.attribute("stash_type")
    if shape is not None and len(call.op.results) == 1 and stash == 1:
        template = "F.layer_norm({0}, {shape}, {1}, {2}, {epsilon:decimal})"
        return call.write(template, shape=repr(shape))
    template = "layer_norm({0}, {1}, {2}, {axis}, {epsilon:decimal}, {stash})"
    return call.first(call.write(template, "normalization", stash=call.dtype(stash)))


@torch_emitter("onnx.RMSNormalization")
def rms_normalization(call: Call) -> str:
    shape, stash = _normalized(call), call.attribute("stash_type")
    if shape is not None and stash == 1:
        template = "F.rms_norm({0}, {shape}, {1}, {epsilon:decimal})"
        return call.write(template, shape=repr(shape))
    template = "rms_norm({0}, {1}, {axis}, {epsilon:decimal}, {stash})"
    return call.write(template, "normalization", stash=call.dtype(stash))


@torch_emitter("onnx.BatchNormalization")
def batch_normalization(call: Call) -> str:
    if not call.attribute("training_mode"):
        return call.write(
            "F.batch_norm({0}, {3}, {4}, {1}, {2}, eps={epsilon:decimal})"
        )
    template = "batch_norm_training({*}, {epsilon:decimal}, {momentum})"
    return call.first(call.write(template, "normalization"))


def _loss(call: Call, function: str) -> str:
    """
    Returns a call of the loss `function` on scores, labels and, if given, weights of
    the classes.
    """
    weight = f", {call.operand(2)}" if call.has(2) else ""
    ignore = call.attribute("ignore_index")
    extra = "" if ignore is None else f", ignore_index={ignore}"
    template = "({0}, {1}.to(torch.int64){weight}{extra}, reduction={reduction})"
    return call.write(f"{function}{template}", weight=weight, extra=extra)


@torch_emitter("onnx.NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> str:
    return _loss(call, "F.nll_loss")


@torch_emitter("onnx.SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> list[str]:
    lines = [_loss(call, "F.cross_entropy"), call.write("F.log_softmax({0}, 1)")]
    return lines[: len(call.op.results)]


@torch_emitter("train.layer_norm_grad")
def layer_norm_gradient(call: Call) -> str:
    assert isinstance(call.op, LayerNormGradOp)
    bias = "" if call.op.dbias is not None else ", bias=False"
    template = "layer_norm_grad({*}{bias})"
    return call.write(template, "trained_normalization", bias=bias)
