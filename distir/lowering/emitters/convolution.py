"""Emitters of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradOp,
    PoolGradOp,
    WindowsOp,
)
from distir.lowering.emitter import Call, torch_emitter


def _spatial(call: Call) -> int:
    dims = call.rank() - 2
    if not 1 <= dims <= 3:
        raise call.fail(f"{dims} spatial dimensions")
    return dims


def _list(call: Call, name: str, default: Sequence[int]) -> list[int]:
    value = call.attribute(name)
    return list(default) if value is None else list(value)


def _pads(
    call: Call, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """
    Returns the padding before and after each spatial dimension. Raises NoLowering if
    automatic padding depends on unknown sizes.
    """
    n = len(kernel)
    auto = call.attribute("auto_pad")
    if auto in ("NOTSET", None, ""):
        pads = _list(call, "pads", [0] * (2 * n))
        return pads[:n], pads[n:]
    if auto == "VALID":
        return [0] * n, [0] * n
    sizes = call.shape()[2:]
    if min(sizes) < 0:
        raise call.fail(f"auto_pad={auto!r} with sizes that are not known")
    total = [
        max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    small = [t // 2 for t in total]
    large = [t - s for t, s in zip(total, small, strict=True)]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def _number(values: Sequence[int]) -> str:
    return repr(values[0]) if len(set(values)) == 1 else repr(tuple(values))


def _padded(x: str, before: Sequence[int], after: Sequence[int]) -> tuple[str, str]:
    """
    Returns the expression of the operand and the padding argument of PyTorch's call. If
    the padding before and after differ, `F.pad` pads the operand, and the argument is
    0.
    """
    if list(before) == list(after):
        return x, _number(before)
    return f"F.pad({x}, {_innermost_first(before, after)!r})", "0"


def _innermost_first(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """
    Returns the padding in the order of `F.pad`: from the last dimension to the first.
    """
    pairs = zip(reversed(before), reversed(after), strict=True)
    return [p for pair in pairs for p in pair]


def _options(**options: str) -> str:
    """
    Returns the keyword arguments of a PyTorch call as text, without PyTorch's defaults:
    0 for padding, 1 for other arguments.
    """
    return "".join(
        f", {name}={value}"
        for name, value in options.items()
        if value != ("0" if "padding" in name else "1")
    )


def _convolution(
    call: Call, x: str, weight: str, bias: str, kernel: Sequence[int], n: int
) -> str:
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    before, after = _pads(call, kernel, strides, dilations)
    x, padding = _padded(x, before, after)
    extra = _options(
        stride=_number(strides),
        padding=padding,
        dilation=_number(dilations),
        groups=repr(call.attribute("group")),
    )
    bias = "" if bias == "None" else f", {bias}"
    return f"F.conv{n}d({x}, {weight}{bias}{extra})"


def _kernel(call: Call, weight: int) -> list[int]:
    kernel = _list(call, "kernel_shape", call.shape(weight)[2:])
    if min(kernel) < 0:
        raise call.fail("a kernel of unknown size")
    return kernel


@torch_emitter("onnx.Conv")
def conv(call: Call) -> str:
    n = _spatial(call)
    return _convolution(
        call, call.operand(0), call.operand(1), call.operand(2), _kernel(call, 1), n
    )


def _convolve(call: Call, kernel: Sequence[int], n: int) -> str:
    """
    Returns the source text of a function of x and weight that computes the convolution.
    Quantised convolutions use it.
    """
    return f"lambda x, w: {_convolution(call, 'x', 'w', 'None', kernel, n)}"


@torch_emitter("onnx.ConvInteger")
def conv_integer(call: Call) -> str:
    function = _convolve(call, _kernel(call, 1), _spatial(call))
    template = "convolve_integer({0}, {1}, {2}, {3}, {function}).to(torch.int32)"
    return call.write(template, "quantization", function=function)


@torch_emitter("onnx.QLinearConv")
def q_linear_conv(call: Call) -> str:
    function = _convolve(call, _kernel(call, 3), _spatial(call))
    operands = ", ".join(call.operand(i) for i in range(9))
    template = "q_linear_convolve({operands}, {function})"
    return call.write(template, "quantization", operands=operands, function=function)


@torch_emitter("onnx.ConvTranspose")
def conv_transpose(call: Call) -> str:
    n = _spatial(call)
    kernel = _kernel(call, 1)
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    extra = _list(call, "output_padding", [0] * n)
    sizes = call.shape()[2:]
    pads = _list(call, "pads", [0] * 2 * n)
    before, after = pads[:n], pads[n:]
    auto = call.attribute("auto_pad")
    wanted = call.attribute("output_shape")
    if auto == "VALID":
        before, after = [0] * n, [0] * n
    if wanted is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        if min(sizes) < 0:
            raise call.fail("an output shape from sizes that are not known")
        targets = (
            list(wanted)[-n:]
            if wanted is not None
            else [size * s for size, s in zip(sizes, strides, strict=True)]
        )
        for i in range(n):
            full = (
                strides[i] * (sizes[i] - 1)
                + extra[i]
                + (kernel[i] - 1) * dilations[i]
                + 1
            )
            total = max(full - targets[i], 0)
            half = total // 2
            if auto == "SAME_UPPER":
                before[i], after[i] = half, total - half
            else:
                before[i], after[i] = total - half, half
            extra[i] += max(targets[i] - full, 0)
    if before == after and all(
        e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)
    ):
        crop, padding, output_padding = "", _number(before), _number(extra)
    else:  # the whole result, then cut to size
        padding, output_padding = "0", "0"
        ends = [e - a for e, a in zip(extra, after, strict=True)]
        crop = f", {_innermost_first([-b for b in before], ends)!r})"
    given = _options(
        stride=_number(strides),
        padding=padding,
        output_padding=output_padding,
        groups=repr(call.attribute("group")),
        dilation=_number(dilations),
    )
    bias = f", {call.operand(2)}" if call.has(2) else ""
    written = f"F.conv_transpose{n}d({call.operand(0)}, {call.operand(1)}"
    if not crop:
        return f"{written}{bias}{given})"
    if call.has(2):  # what extends the result holds the bias too
        shape = (-1, *[1] * n)
        return f"F.pad({written}{given}){crop} + {call.operand(2)}.reshape({shape!r})"
    return f"F.pad({written}{given}){crop}"


def _pool(call: Call, kind: str) -> str:
    kernel = list(call.attribute("kernel_shape"))
    n = len(kernel)
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    before, after = _pads(call, kernel, strides, dilations)
    ceil = bool(call.attribute("ceil_mode")) and call.attribute("auto_pad") == "NOTSET"
    sizes = call.shape()[2:] if call.is_ranked(0) else [-1] * n
    free = [  # beside the first window
        0 if size < 0 else size + b + a - (k - 1) * d - 1
        for size, b, a, k, d in zip(
            sizes, before, after, kernel, dilations, strict=True
        )
    ]
    x = call.operand(0)
    plain = (
        not ceil
        and before == after
        and min(free) >= 0
        and 1 <= n <= 3
        and len(call.op.results) == 1
        and all(2 * p <= k for p, k in zip(before, kernel, strict=True))
        and "FLOAT" in call.element(0)
    )
    stride = _number(strides)
    padding = "" if not any(before) else f", padding={_number(before)}"
    if plain and kind == "max":
        dilation = "" if set(dilations) == {1} else f", dilation={_number(dilations)}"
        return f"F.max_pool{n}d({x}, {_number(kernel)}, {stride}{padding}{dilation})"
    if plain and kind == "mean" and set(dilations) == {1}:
        count = bool(call.attribute("count_include_pad"))
        tail = f", count_include_pad={count}" if padding else ""
        return f"F.avg_pool{n}d({x}, {_number(kernel)}, {stride}{padding}{tail})"
    extra = {"mean": ", count_padding={count_include_pad:flag}", "lp": ", p={p}"}
    template = "({0}, {windows}, ceil={ceil}" + extra.get(kind, "")
    if kind == "max" and len(call.op.results) == 2:
        template += ", indices=True, columns_first={storage_order:flag}"
    windows = ", ".join(map(repr, (kernel, strides, dilations, before, after)))
    given = {"windows": windows, "ceil": repr(ceil)}
    return call.write(f"{kind}_pool{template})", "pooling", **given)


for _name, _kind in (("Max", "max"), ("Average", "mean"), ("Lp", "lp")):
    torch_emitter(f"onnx.{_name}Pool")(lambda call, kind=_kind: _pool(call, kind))


@torch_emitter("onnx.GlobalAveragePool", "onnx.GlobalMaxPool", "onnx.GlobalLpPool")
def global_pool(call: Call) -> str:
    template = {
        "onnx.GlobalAveragePool": "{0}.mean({space}, keepdim=True)",
        "onnx.GlobalMaxPool": "{0}.amax({space}, keepdim=True)",
        "onnx.GlobalLpPool": "torch.linalg.vector_norm({0}, {p}, {space}, keepdim=True)",
    }[call.op.name]
    return call.write(template, space=repr(tuple(range(2, call.rank()))))


@torch_emitter("onnx.MaxUnpool")
def max_unpool(call: Call) -> str:
    kernel = list(call.attribute("kernel_shape"))
    strides = _list(call, "strides", [1] * len(kernel))
    pads = _list(call, "pads", [0] * 2 * len(kernel))
    windows = f"{kernel!r}, {strides!r}, {pads!r}"
    template = "max_unpool({0}, {1}, {windows}, {2:integers})"
    return call.write(template, "pooling", windows=windows)


@torch_emitter("onnx.Col2Im")
def col2im(call: Call) -> str:
    image, block = call.constant(1), call.constant(2)
    n = len(image) if image is not None else call.shape(1)[0]
    pads = _list(call, "pads", [0] * 2 * n)
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    if n == 2 and pads[:n] == pads[n:] and block is not None:
        options = (
            f"dilation={_number(dilations)}, padding={_number(pads[:n])}, "
            f"stride={_number(strides)}"
        )
        template = "F.fold({0}, {1:integers}, {2:integers}, {options})"
        return call.write(template, options=options)
    windows = f"{dilations!r}, {pads!r}, {strides!r}"
    template = "col2im({0}, {1:integers}, {2:integers}, {windows})"
    return call.write(template, "pooling", windows=windows)


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
