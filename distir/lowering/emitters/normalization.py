"""Emitters of normalisations and losses."""

from __future__ import annotations

from distir.lowering.emitter import Call, torch_emitter


def _normalized(call: Call) -> tuple[int, ...] | None:
    """The normalised shape, where PyTorch's own call does what the op says."""
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
    shape = _normalized(call)
    epsilon = call.decimal("epsilon")
    operands = [call.operand(i) for i in range(3)]
    if (
        shape is not None
        and len(call.op.results) == 1
        and call.attribute("stash_type") == 1
    ):
        return f"F.layer_norm({operands[0]}, {shape!r}, {operands[1]}, {operands[2]}, {epsilon})"
    count = len(call.op.results)
    written = (
        f"{call.helper('normalization')}.layer_norm({', '.join(operands)}, "
        f"{call.attribute('axis')}, {epsilon}, "
        f"{call.dtype(call.attribute('stash_type'))})"
    )
    return f"{written}[0]" if count == 1 else f"{written}[:{count}]"


@torch_emitter("onnx.RMSNormalization")
def rms_normalization(call: Call) -> str:
    shape = _normalized(call)
    epsilon = call.decimal("epsilon")
    if shape is not None and call.attribute("stash_type") == 1:
        return f"F.rms_norm({call.operand(0)}, {shape!r}, {call.operand(1)}, {epsilon})"
    return (
        f"{call.helper('normalization')}.rms_norm({call.operand(0)}, {call.operand(1)}, "
        f"{call.attribute('axis')}, {epsilon}, "
        f"{call.dtype(call.attribute('stash_type'))})"
    )


@torch_emitter("onnx.BatchNormalization")
def batch_normalization(call: Call) -> str:
    x, scale, bias, mean, variance = call.operands()
    epsilon = call.decimal("epsilon")
    if not call.attribute("training_mode"):
        return f"F.batch_norm({x}, {mean}, {variance}, {scale}, {bias}, eps={epsilon})"
    written = (
        f"{call.helper('normalization')}.batch_norm_training({x}, {scale}, {bias}, {mean}, "
        f"{variance}, {epsilon}, {call.attribute('momentum')!r})"
    )
    count = len(call.op.results)
    return f"{written}[0]" if count == 1 else f"{written}[:{count}]"


@torch_emitter("onnx.GroupNormalization")
def group_normalization(call: Call) -> str:
    x, scale, bias = call.operands()
    return (
        f"F.group_norm({x}, {call.attribute('num_groups')}, {scale}, {bias}, "
        f"{call.decimal('epsilon')})"
    )


@torch_emitter("onnx.InstanceNormalization")
def instance_normalization(call: Call) -> str:
    x, scale, bias = call.operands()
    return (
        f"F.instance_norm({x}, weight={scale}, bias={bias}, "
        f"eps={call.decimal('epsilon')})"
    )


@torch_emitter("onnx.LRN")
def local_response(call: Call) -> str:
    return (
        f"{call.helper('normalization')}.local_response_norm({call.operand(0)}, "
        f"{call.attribute('size')}, {call.attribute('alpha')!r}, "
        f"{call.attribute('beta')!r}, {call.attribute('bias')!r})"
    )


@torch_emitter("onnx.MeanVarianceNormalization")
def mean_variance(call: Call) -> str:
    return (
        f"{call.helper('normalization')}.mean_variance_norm({call.operand(0)}, "
        f"{tuple(call.attribute('axes'))!r})"
    )


def _loss_options(call: Call) -> str:
    ignore = call.attribute("ignore_index")
    extra = "" if ignore is None else f", ignore_index={ignore}"
    return f"{extra}, reduction={call.attribute('reduction')!r}"


@torch_emitter("onnx.NegativeLogLikelihoodLoss")
def nll_loss(call: Call) -> str:
    weight = f", {call.operand(2)}" if call.has(2) else ""
    return (
        f"F.nll_loss({call.operand(0)}, {call.operand(1)}.to(torch.int64)"
        f"{weight}{_loss_options(call)})"
    )


@torch_emitter("onnx.SoftmaxCrossEntropyLoss")
def cross_entropy(call: Call) -> list[str]:
    weight = f", {call.operand(2)}" if call.has(2) else ""
    lines = [
        f"F.cross_entropy({call.operand(0)}, {call.operand(1)}.to(torch.int64)"
        f"{weight}{_loss_options(call)})",
        f"F.log_softmax({call.operand(0)}, 1)",
    ]
    return lines[: len(call.op.results)]
