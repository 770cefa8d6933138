"""Emitters of the gradients of convolutions and pooling."""

from __future__ import annotations

from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradOp,
    PoolGradOp,
    WindowsOp,
)
from distir.lowering.emitter import Call, torch_emitter


def _windows(call: Call) -> list[str]:
    op = call.op
    assert isinstance(op, WindowsOp)
    if not 1 <= len(op.steps) <= 3:
        raise call.fail(f"{len(op.steps)} spatial dimensions")
    return [repr(op.steps), repr(op.spacing), repr(op.margins)]


@torch_emitter("train.conv_grad_input", "train.conv_grad_weight")
def convolution_gradient(call: Call) -> str:
    assert isinstance(call.op, ConvGradOp)
    arguments = [*call.operands(), repr(call.result_shape()), *_windows(call)]
    arguments.append(repr(call.op.groups))
    return call.like_op("convolution_gradients", arguments)


@torch_emitter("torch.conv_grad")
def convolution_gradients(call: Call) -> str:
    assert isinstance(call.op, ConvGradOp)
    arguments = [*call.operands(), *_windows(call), repr(call.op.groups)]
    return call.like_op("convolution_gradients", arguments)


@torch_emitter("train.max_pool_grad", "train.average_pool_grad")
def pool_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, PoolGradOp)
    arguments = call.operands()
    if isinstance(op, AveragePoolGradOp):
        arguments += [repr(call.result_shape()), repr(op.counts())]
    arguments += [repr(op.kernel), *_windows(call)]
    return call.like_op("convolution_gradients", arguments)
