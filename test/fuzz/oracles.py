"""
What others make of an operator: onnxruntime, and PyTorch's own function written down here
by hand, apart from what DistIR emits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch
import torch.nn.functional as F
from onnx import helper
from support.lowering_cases import to_numpy, to_torch

from distir.dialects.onnx_ops.inference import node_of
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import type_to_proto

RUNTIME_OPSETS = (25, 23, 22)
"""Those that onnxruntime has kernels for, the newest first."""


class Runtime:
    """An op in onnxruntime; `run` gives None for what it has no kernel for."""

    def __init__(self, op: OnnxOp) -> None:
        self._session: Any = None
        self._names = [
            "" if v is None else f"x{i}" for i, v in enumerate(op.input_values)
        ]
        outputs = [f"y{i}" for i in range(len(op.results))]
        node = node_of(op, self._names, outputs)
        graph = helper.make_graph(
            [node],
            "op",
            [
                helper.make_value_info(name, type_to_proto(v.type))
                for name, v in zip(self._names, op.input_values, strict=True)
                if v is not None
            ],
            [
                helper.make_value_info(name, type_to_proto(r.type))
                for name, r in zip(outputs, op.results, strict=True)
            ],
        )
        for opset in RUNTIME_OPSETS:
            model = helper.make_model(
                graph, opset_imports=[helper.make_opsetid("", opset)]
            )
            model.ir_version = 10
            self._session = _session(model)
            if self._session is not None:
                return

    def run(self, inputs: Sequence[Any]) -> list[Any] | None:
        if self._session is None:
            return None
        feeds = {n: a for n, a in zip(self._names, inputs, strict=True) if n}
        try:
            return list(self._session.run(None, feeds))
        except _runtime_errors():
            return None


def _runtime_errors() -> tuple[type[Exception], ...]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return (
        state.Fail,
        state.InvalidArgument,
        state.InvalidGraph,
        state.NotImplemented,
        state.RuntimeException,
        state.EPFail,
        RuntimeError,
    )


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except _runtime_errors():
        return None


Attributes = Callable[[str], Any]
"""From the name of an attribute of an op to its value."""

Function = Callable[..., Any]
"""From the attributes and the tensors of an op to its results."""


def pytorch(op: OnnxOp, inputs: Sequence[Any]) -> list[Any] | None:
    """What PyTorch's function gives; None if there is none, or none for these types."""
    function = FUNCTIONS.get(op.name.removeprefix("onnx."))
    if function is None:
        return None
    try:
        with torch.no_grad():
            found = function(op.attribute, *map(to_torch, inputs))
    except (RuntimeError, TypeError, IndexError, NotImplementedError):
        return None
    if found is None:
        return None
    return [to_numpy(t) for t in (found if isinstance(found, tuple) else (found,))]


def _plain(function: Callable[..., Any]) -> Function:
    return lambda a, *x: function(*x)


def _folded(function: Callable[..., Any]) -> Function:
    def of(a: Attributes, first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return of


def _divided(a: Attributes, x: Any, y: Any) -> Any:
    if x.is_floating_point():
        return x / y
    return torch.div(x, y, rounding_mode="trunc")


def _clip(a: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    # Without bounds torch.clamp refuses; onnxruntime makes infinities finite.
    return x if low is None and high is None else torch.clamp(x, low, high)


def _reduced(function: Callable[..., Any]) -> Function:
    """A function of a tensor and its axes, keeping them as dimensions of one element."""

    def of(a: Attributes, x: Any, axes: Any = None) -> Any:
        given = [] if axes is None else [int(i) % x.dim() for i in axes]
        if not given and a("noop_with_empty_axes"):
            return None
        if not x.dim():
            y = function(x.reshape(1), [0])
            return y if y is None else y.reshape(())
        over = sorted(given) or list(range(x.dim()))
        y = function(x, over)
        return y if y is None or a("keepdims") else y.squeeze(over)

    return of


def _product(x: Any, over: Sequence[int]) -> Any:
    for axis in over:
        x = x.prod(axis, keepdim=True, dtype=x.dtype)
    return x


def _mean(x: Any, over: Sequence[int]) -> Any:
    return x.mean(over, keepdim=True) if x.is_floating_point() else None


def _arg(function: Callable[..., Any]) -> Function:
    def of(a: Attributes, x: Any) -> Any:
        if a("select_last_index"):
            return None
        return function(x, a("axis"), keepdim=bool(a("keepdims")))

    return of


def _top_k(a: Attributes, x: Any, k: Any) -> Any:
    largest = bool(a("largest"))
    values, places = torch.sort(x, dim=a("axis"), descending=largest, stable=True)
    count = int(k.reshape(-1)[0])
    return values.narrow(a("axis"), 0, count), places.narrow(a("axis"), 0, count)


def _running(function: Callable[..., Any]) -> Function:
    def of(a: Attributes, x: Any, axis: Any) -> Any:
        if a("exclusive") or a("reverse"):
            return None
        return function(x, int(axis), dtype=x.dtype)

    return of


def _symmetric(a: Attributes, rank: int) -> Any:
    """Pads of one number at each side; None for others."""
    pads = list(a("pads") or [0] * 2 * rank)
    return pads[:rank] if pads[:rank] == pads[rank:] else None


def _last_first(pads: Sequence[int]) -> list[int]:
    """Pads as PyTorch has them: of each dimension from the last one on, both sides."""
    rank = len(pads) // 2
    return [int(p) for i in reversed(range(rank)) for p in (pads[i], pads[i + rank])]


def _max_pool(a: Attributes, x: Any) -> Any:
    pads = _symmetric(a, x.dim() - 2)
    function: Any = (F.max_pool1d, F.max_pool2d)[x.dim() - 3]
    if pads is None:
        if a("ceil_mode") or not x.is_floating_point():
            return None
        # Padded by hand. Indices would count the padding.
        padded = F.pad(x, _last_first(a("pads")), value=-math.inf)
        return function(padded, list(a("kernel_shape")), list(a("strides")))
    largest, places = function(
        x,
        list(a("kernel_shape")),
        list(a("strides")),
        pads,
        ceil_mode=bool(a("ceil_mode")),
        return_indices=True,
    )
    # PyTorch counts within a channel of a sample, ONNX through the whole tensor.
    channels = torch.arange(x.shape[0] * x.shape[1]) * x.shape[2:].numel()
    return largest, places + channels.reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def _lp_normalized(a: Attributes, x: Any) -> Any:
    norm = torch.linalg.vector_norm(x, a("p"), a("axis"), keepdim=True)
    return x / norm.masked_fill(norm == 0, 1)


def _average_pool(a: Attributes, x: Any) -> Any:
    pads = _symmetric(a, x.dim() - 2)
    # Where windows go beyond the padding, PyTorch counts other elements than ONNX.
    if pads is None or a("ceil_mode"):
        return None
    function: Any = (F.avg_pool1d, F.avg_pool2d)[x.dim() - 3]
    return function(
        x,
        list(a("kernel_shape")),
        list(a("strides")),
        pads,
        count_include_pad=bool(a("count_include_pad")),
    )


def _convolution(a: Attributes, x: Any, w: Any, bias: Any = None) -> Any:
    pads = _symmetric(a, x.dim() - 2)
    if pads is None:
        return None
    function: Any = (F.conv1d, F.conv2d)[x.dim() - 3]
    return function(x, w, bias, list(a("strides")), pads, groups=a("group"))


def _gemm(a: Attributes, x: Any, y: Any, z: Any = None) -> Any:
    x, y = (x.T if a("transA") else x), (y.T if a("transB") else y)
    product = a("alpha") * (x @ y)
    return product if z is None else product + a("beta") * z


def _layer_norm(a: Attributes, x: Any, w: Any, b: Any = None) -> Any:
    return F.layer_norm(x, w.shape, w, b, a("epsilon"))


def _scattered(a: Attributes, x: Any, places: Any, updates: Any) -> Any:
    """Minima and maxima: onnxruntime loses a NaN that is there before."""
    name = {"min": "amin", "max": "amax"}.get(a("reduction"))
    if name is None:
        return None
    places = places % x.shape[a("axis")]
    return x.scatter_reduce(a("axis"), places, updates, name)


def _attention(a: Attributes, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    if a("softcap") or q.dim() != 4 or a("q_num_heads"):
        return None
    if a("is_causal") and mask is not None:
        return None
    return F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=bool(a("is_causal")), scale=a("scale")
    )


def _pad(a: Attributes, x: Any, pads: Any, value: Any = None) -> Any:
    mode = {"edge": "replicate", "wrap": "circular"}.get(a("mode"), a("mode"))
    rank = x.dim()
    if value is not None or (mode != "constant" and rank != 2):
        return None
    given = _last_first(pads)
    if mode == "constant":
        return F.pad(x, given)
    return F.pad(x[None, None], given, mode=mode)[0, 0]


def _cast(a: Attributes, x: Any) -> Any:
    from distir.lowering.emitter import DTYPES

    name = onnx.TensorProto.DataType.Name(a("to"))
    return x.to(getattr(torch, DTYPES[name].removeprefix("torch.")))


_SAME = """Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Neg Reciprocal
    Round Sigmoid Sign Sin Sinh Sqrt Tan Tanh IsNaN"""

FUNCTIONS: Mapping[str, Function] = {
    **{name: _plain(getattr(torch, name.lower())) for name in _SAME.split()},
    "IsInf": lambda a, x: (
        torch.isinf(x) if a("detect_negative") and a("detect_positive") else None
    ),
    "Not": _plain(torch.logical_not),
    "BitwiseNot": _plain(torch.bitwise_not),
    "HardSwish": _plain(F.hardswish),
    "Mish": _plain(F.mish),
    "Relu": _plain(F.relu),
    "Softplus": lambda a, x: F.softplus(x, threshold=40),
    "Softsign": _plain(F.softsign),
    "Selu": lambda a, x: a("gamma") * F.elu(x, a("alpha")),
    "Elu": lambda a, x: F.elu(x, a("alpha")),
    "Celu": lambda a, x: F.celu(x, a("alpha")),
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a("alpha")),
    "ThresholdedRelu": lambda a, x: F.threshold(x, a("alpha"), 0.0),
    "Gelu": lambda a, x: F.gelu(x, approximate=a("approximate")),
    "Swish": lambda a, x: F.silu(x) if a("alpha") == 1 else None,
    "Add": _plain(torch.add),
    "Sub": _plain(torch.sub),
    "Mul": _plain(torch.mul),
    "Div": _divided,
    "Mod": lambda a, x, y: torch.fmod(x, y) if a("fmod") else torch.remainder(x, y),
    "Pow": lambda a, x, y: torch.pow(x, y) if x.dtype == y.dtype else None,
    "And": _plain(torch.logical_and),
    "Or": _plain(torch.logical_or),
    "Xor": _plain(torch.logical_xor),
    "BitwiseAnd": _plain(torch.bitwise_and),
    "BitwiseOr": _plain(torch.bitwise_or),
    "BitwiseXor": _plain(torch.bitwise_xor),
    "Equal": _plain(torch.eq),
    "Less": _plain(torch.lt),
    "LessOrEqual": _plain(torch.le),
    "Greater": _plain(torch.gt),
    "GreaterOrEqual": _plain(torch.ge),
    "PRelu": lambda a, x, w: F.prelu(x, w.reshape(-1)) if w.numel() == 1 else None,
    "Max": _folded(torch.maximum),
    "Min": _folded(torch.minimum),
    "Sum": _folded(torch.add),
    "Where": _plain(torch.where),
    "Clip": _clip,
    "Cast": _cast,
    "ReduceSum": _reduced(lambda x, over: x.sum(over, keepdim=True, dtype=x.dtype)),
    "ReduceMean": _reduced(_mean),
    "ReduceMax": _reduced(lambda x, over: x.amax(over, keepdim=True)),
    "ReduceMin": _reduced(lambda x, over: x.amin(over, keepdim=True)),
    "ReduceProd": _reduced(_product),
    "ReduceL1": _reduced(
        lambda x, over: x.abs().sum(over, keepdim=True, dtype=x.dtype)
    ),
    "ReduceL2": _reduced(
        lambda x, over: torch.linalg.vector_norm(x, 2, over, keepdim=True)
    ),
    "ReduceSumSquare": _reduced(
        lambda x, over: (x * x).sum(over, keepdim=True, dtype=x.dtype)
    ),
    "ReduceLogSumExp": _reduced(lambda x, over: torch.logsumexp(x, over, keepdim=True)),
    "Mean": lambda a, *x: torch.stack(torch.broadcast_tensors(*x)).mean(0),
    "Softmax": lambda a, x: F.softmax(x, a("axis")),
    "LogSoftmax": lambda a, x: F.log_softmax(x, a("axis")),
    "ArgMax": _arg(torch.argmax),
    "ArgMin": _arg(torch.argmin),
    "TopK": _top_k,
    "CumSum": _running(torch.cumsum),
    "CumProd": _running(torch.cumprod),
    "LpNormalization": _lp_normalized,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda a, x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "GlobalMaxPool": lambda a, x: x.amax(tuple(range(2, x.dim())), keepdim=True),
    "MatMul": _plain(torch.matmul),
    "Gemm": _gemm,
    "Einsum": lambda a, *x: torch.einsum(a("equation"), *x).to(x[0].dtype),
    "Conv": _convolution,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": lambda a, x, w: F.rms_norm(x, w.shape, w, a("epsilon")),
    "InstanceNormalization": lambda a, x, w, b: F.instance_norm(
        x, weight=w, bias=b, eps=a("epsilon")
    ),
    "GroupNormalization": lambda a, x, w, b: F.group_norm(
        x, a("num_groups"), w, b, a("epsilon")
    ),
    "BatchNormalization": lambda a, x, w, b, mean, var: F.batch_norm(
        x, mean, var, w, b, eps=a("epsilon")
    ),
    "Attention": _attention,
    "Transpose": lambda a, x: x.permute(*a("perm")) if x.dim() else x,
    "Trilu": lambda a, x, k: (torch.triu if a("upper") else torch.tril)(x, int(k)),
    "Gather": lambda a, x, i: (
        x.index_select(a("axis"), i % x.shape[a("axis")]) if i.dim() == 1 else None
    ),
    "GatherElements": lambda a, x, i: x.gather(a("axis"), i % x.shape[a("axis")]),
    "ScatterElements": _scattered,
    "Pad": _pad,
    "NonZero": lambda a, x: x.nonzero().T,
    "Concat": lambda a, *x: torch.cat(x, a("axis")),
}
"""By the name of an operator of ONNX."""
