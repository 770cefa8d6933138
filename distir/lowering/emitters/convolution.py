"""Emitters of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

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
    """The padding before and after each spatial dimension."""
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
    """The operand, padded first if PyTorch cannot do it, and the padding argument."""
    if list(before) == list(after):
        return x, _number(before)
    flat = [
        p
        for b, a in zip(reversed(before), reversed(after), strict=True)
        for p in (b, a)
    ]
    return f"F.pad({x}, {flat!r})", "0"


def _convolution(
    call: Call, x: str, weight: str, bias: str, kernel: Sequence[int], n: int
) -> str:
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    before, after = _pads(call, kernel, strides, dilations)
    x, padding = _padded(x, before, after)
    options = [
        ("stride", _number(strides), "1"),
        ("padding", padding, "0"),
        ("dilation", _number(dilations), "1"),
        ("groups", repr(call.attribute("group")), "1"),
    ]
    extra = "".join(f", {k}={v}" for k, v, default in options if v != default)
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
    """A function of x and weight, for the quantised convolutions."""
    return f"lambda x, w: {_convolution(call, 'x', 'w', 'None', kernel, n)}"


@torch_emitter("onnx.ConvInteger")
def conv_integer(call: Call) -> str:
    function = _convolve(call, _kernel(call, 1), _spatial(call))
    operands = [call.operand(i) for i in range(4)]
    return (
        f"{call.helper('quantization')}.convolve_integer({', '.join(operands)}, "
        f"{function}).to(torch.int32)"
    )


@torch_emitter("onnx.QLinearConv")
def q_linear_conv(call: Call) -> str:
    function = _convolve(call, _kernel(call, 3), _spatial(call))
    operands = [call.operand(i) for i in range(9)]
    return (
        f"{call.helper('quantization')}.q_linear_convolve({', '.join(operands)}, "
        f"{function})"
    )


@torch_emitter("onnx.ConvTranspose")
def conv_transpose(call: Call) -> str:
    n = _spatial(call)
    kernel = _kernel(call, 1)
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    extra = _list(call, "output_padding", [0] * n)
    sizes = call.shape()[2:]
    before, after = (
        _list(call, "pads", [0] * 2 * n)[:n],
        _list(call, "pads", [0] * 2 * n)[n:],
    )
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
        flat = [
            p
            for b, a, e in zip(
                reversed(before), reversed(after), reversed(extra), strict=True
            )
            for p in (-b, e - a)
        ]
        crop = f", {flat!r})"
    options = [
        ("stride", _number(strides), "1"),
        ("padding", padding, "0"),
        ("output_padding", output_padding, "0"),
        ("groups", repr(call.attribute("group")), "1"),
        ("dilation", _number(dilations), "1"),
    ]
    bias = f", {call.operand(2)}" if call.has(2) else ""
    given = "".join(f", {k}={v}" for k, v, default in options if v != default)
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
    x = call.operand(0)
    plain = (
        not ceil
        and before == after
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
    written = (
        f"{call.helper('pooling')}.{kind}_pool({x}, {kernel!r}, {strides!r}, "
        f"{dilations!r}, {before!r}, {after!r}, ceil={ceil}"
    )
    if kind == "mean":
        written += f", count_padding={bool(call.attribute('count_include_pad'))}"
    if kind == "lp":
        written += f", p={call.attribute('p')}"
    if kind == "max" and len(call.op.results) == 2:
        written += (
            f", indices=True, columns_first={bool(call.attribute('storage_order'))}"
        )
    return written + ")"


@torch_emitter("onnx.MaxPool")
def max_pool(call: Call) -> str:
    return _pool(call, "max")


@torch_emitter("onnx.AveragePool")
def average_pool(call: Call) -> str:
    return _pool(call, "mean")


@torch_emitter("onnx.LpPool")
def lp_pool(call: Call) -> str:
    return _pool(call, "lp")


@torch_emitter("onnx.GlobalAveragePool")
def global_average_pool(call: Call) -> str:
    return f"{call.operand(0)}.mean({tuple(range(2, call.rank()))!r}, keepdim=True)"


@torch_emitter("onnx.GlobalMaxPool")
def global_max_pool(call: Call) -> str:
    return f"{call.operand(0)}.amax({tuple(range(2, call.rank()))!r}, keepdim=True)"


@torch_emitter("onnx.GlobalLpPool")
def global_lp_pool(call: Call) -> str:
    axes = tuple(range(2, call.rank()))
    p = call.attribute("p")
    return f"torch.linalg.vector_norm({call.operand(0)}, {p}, {axes!r}, keepdim=True)"


@torch_emitter("onnx.MaxUnpool")
def max_unpool(call: Call) -> str:
    kernel = list(call.attribute("kernel_shape"))
    strides = _list(call, "strides", [1] * len(kernel))
    pads = _list(call, "pads", [0] * 2 * len(kernel))
    return (
        f"{call.helper('pooling')}.max_unpool({call.operand(0)}, {call.operand(1)}, "
        f"{kernel!r}, {strides!r}, {pads!r}, {call.integers(2)})"
    )


@torch_emitter("onnx.Col2Im")
def col2im(call: Call) -> str:
    image, block = call.constant(1), call.constant(2)
    n = len(image) if image is not None else call.shape(1)[0]
    pads = _list(call, "pads", [0] * 2 * n)
    strides = _list(call, "strides", [1] * n)
    dilations = _list(call, "dilations", [1] * n)
    if n == 2 and pads[:n] == pads[n:] and block is not None:
        return (
            f"F.fold({call.operand(0)}, {call.integers(1)}, {call.integers(2)}, "
            f"dilation={_number(dilations)}, padding={_number(pads[:n])}, "
            f"stride={_number(strides)})"
        )
    return (
        f"{call.helper('pooling')}.col2im({call.operand(0)}, {call.integers(1)}, "
        f"{call.integers(2)}, {dilations!r}, {pads!r}, {strides!r})"
    )
