"""Emitters of elementwise ops."""

from __future__ import annotations

from collections.abc import Callable

from distir.dialects.onnx_ops.elementwise import OPERATORS, Elementwise
from distir.dialects.train_ops.dropout import DropoutOp
from distir.lowering.emitter import NARROW, Call, torch_emitter, torch_templates

_UNSIGNED = frozenset(("UINT16", "UINT32", "UINT64"))
"""Element types that PyTorch can store, but that few of its operators support."""


def is_wide_unsigned(call: Call, index: int) -> bool:
    """Whether operand `index` is given and has unsigned elements of 16 bits or more."""
    return call.has(index) and call.element(index) in _UNSIGNED


def is_integer(call: Call) -> bool:
    """Whether the first operand holds integers."""
    return "INT" in call.element(0)


def signed(call: Call, index: int, *, wraps: bool = False) -> str:
    """
    Returns operand `index` in a type that PyTorch computes with. Unsigned integers of
    16 bits or more become int64. Unless the op `wraps` around on overflow, the
    generated code checks that the integers fit into int64.
    """
    if not is_wide_unsigned(call, index):
        return call.scalar(index)
    if wraps:
        return f"{call.operand(index)}.to(torch.int64)"
    return f"{call.helper('numeric')}.as_int64({call.operand(index)})"


class _WidenedCall(Call):
    """
    An elementwise op whose operands have been converted to types that PyTorch computes
    with.
    """

    wraps: bool = False

    def operand(self, index: int) -> str:
        plain = Call(self.op, self.names)
        return signed(plain, index, wraps=self.wraps)


def _emitter(row: Elementwise) -> Callable[[Call], str]:
    """
    Returns the emitter of an operator from the expression in its row of the table.
    """

    def emit(call: Call) -> str:
        widened = _WidenedCall(call.op, call.names)
        widened.wraps = row.unsigned == "wraps"
        written = widened.write(row.torch)
        if is_wide_unsigned(call, 0) and call.result_element() != "BOOL":
            return f"({written}).to({call.result_dtype()})"
        return written

    return emit


for _name, _row in OPERATORS.items():
    if _row.torch and _row.unsigned == "bits":
        torch_templates({_name: _row.torch})
    elif _row.torch:
        torch_emitter(f"onnx.{_name}")(_emitter(_row))


@torch_emitter("onnx.PRelu")
def prelu(call: Call) -> str:
    if is_wide_unsigned(call, 0):
        return call.operand(0)
    return call.write("torch.where({0} < 0, {0} * {1}, {0})")


@torch_emitter("onnx.Div")
def div(call: Call) -> str:
    if not is_integer(call):
        return f"{call.scalar(0)} / {call.scalar(1)}"
    left, right = signed(call, 0), signed(call, 1)
    if not is_wide_unsigned(call, 0) and call.constant(0) is not None:
        left = call.operand(0)  # torch.div wants a tensor on the left
    written = f"torch.div({left}, {right}, rounding_mode='trunc')"
    return (
        f"{written}.to({call.result_dtype()})" if is_wide_unsigned(call, 0) else written
    )


@torch_emitter("onnx.Mod")
def mod(call: Call) -> str:
    function = "torch.fmod" if call.attribute("fmod") else "torch.remainder"
    wide = is_wide_unsigned(call, 0)
    left = signed(call, 0) if wide else call.operand(0)
    written = f"{function}({left}, {signed(call, 1)})"
    return f"{written}.to({call.result_dtype()})" if wide else written


@torch_emitter("onnx.Pow")
def power(call: Call) -> str:
    wide = is_wide_unsigned(call, 0)
    base = signed(call, 0) if wide else call.operand(0)
    if call.element(0) == "BFLOAT16" and call.element(1) in ("FLOAT16", "FLOAT"):
        # A scalar tensor would be rounded to the type of the base first.
        base = f"{base}.to(torch.float32)"
    exponent = signed(call, 1)
    if _promotes_without(call, 0):
        base = f"{base}.reshape(1)"
    elif call.constant(1) is None and _promotes_without(call, 1):
        exponent = f"{exponent}.reshape(1)"
    written = f"torch.pow({base}, {exponent})"
    if call.element(0) != call.element(1) or wide:
        return f"{written}.to({call.result_dtype()})"
    return written


def _promotes_without(call: Call, index: int) -> bool:
    """
    Whether PyTorch would ignore the type of operand `index` and compute in the type of
    the other operand. This happens if operand `index` has no dimensions, the other
    operand has some, and both are floats or both are integers.
    """
    if not (call.is_ranked(0) and call.is_ranked(1)):
        return False
    first, second = call.element(0), call.element(1)
    return (
        first != second
        and ("INT" in first) == ("INT" in second)
        and call.rank(index) == 0 < call.rank(1 - index)
    )


@torch_emitter("onnx.Max", "onnx.Min")
def extremum(call: Call) -> str:
    function = "torch.maximum" if call.op.name == "onnx.Max" else "torch.minimum"
    wide = is_wide_unsigned(call, 0)
    written, *values = (
        signed(call, i) if wide else call.operand(i) for i in range(call.count)
    )
    for value in values:
        written = f"{function}({written}, {value})"
    return f"({written}).to({call.result_dtype()})" if wide else written


@torch_emitter("onnx.Sum")
def sum_(call: Call) -> str:
    return " + ".join(call.operands())


@torch_emitter("onnx.Mean")
def mean(call: Call) -> str:
    values = call.operands()
    if call.element(0) in ("FLOAT16", "BFLOAT16"):
        # The sum may be too large for 16 bits where the mean is not.
        values[0] = f"{values[0]}.to(torch.float32)"
        return f"(({' + '.join(values)}) / {call.count}).to({call.result_dtype()})"
    return f"({' + '.join(values)}) / {call.count}"


@torch_emitter("onnx.Clip")
def clip(call: Call) -> str:
    low, high = (
        call.number(i) if call.constant(i) is not None else signed(call, i)
        for i in (1, 2)
    )
    if not call.has(1) and not call.has(2):
        return call.operand(0)
    low = low if call.has(1) else "None"
    high = high if call.has(2) else "None"
    if (low[0] == "N" or call.constant(1) is not None) != (
        high[0] == "N" or call.constant(2) is not None
    ):  # torch.clamp wants both bounds as numbers or both as tensors
        low = call.operand(1) if call.has(1) else "None"
        high = call.operand(2) if call.has(2) else "None"
    if is_wide_unsigned(call, 0):
        x = signed(call, 0)
        bounds = ", ".join(
            signed(call, i) if call.has(i) and v == call.operand(i) else v
            for i, v in ((1, low), (2, high))
        )
        return f"torch.clamp({x}, {bounds}).to({call.result_dtype()})"
    return f"torch.clamp({call.operand(0)}, {low}, {high})"


@torch_emitter("onnx.BitShift")
def bit_shift(call: Call) -> str:
    left = repr(call.attribute("direction") == "LEFT")
    return call.write("bit_shift({0}, {1}, left={left})", "numeric", left=left)


@torch_emitter("onnx.Cast")
def cast(call: Call) -> str:
    return _cast(call, call.dtype(call.attribute("to")))


@torch_emitter("onnx.CastLike")
def cast_like(call: Call) -> str:
    return _cast(call, call.result_dtype())


def _cast(call: Call, dtype: str) -> str:
    call.dtype(_number(call.element(0)))
    target = call.result_element()
    if target in NARROW:
        least, largest = NARROW[target]
        bounds = f"{least}, {largest}, {dtype}"
        return call.write("to_narrow({0}, {bounds})", "numeric", bounds=bounds)
    if target == "FLOAT4E2M1":
        return call.write("to_float4({0})", "numeric")
    if "float8" in dtype:
        extra = ""
        if not call.attribute("saturate"):
            extra += ", saturate=False"
        if dtype.endswith("e8m0fnu"):
            extra += f", round_mode={call.attribute('round_mode')!r}"
        given = f"{dtype}{extra}"
        return call.write("to_float8({0}, {given})", "numeric", given=given)
    if "float" in call.element(0).lower() and "uint" in dtype:
        return call.write("to_unsigned({0}, {dtype})", "numeric", dtype=dtype)
    return f"{call.operand(0)}.to({dtype})"


def _number(element: str) -> int:
    from onnx import TensorProto

    return TensorProto.DataType.Value(element)


@torch_emitter("onnx.IsInf")
def is_inf(call: Call) -> str:
    negative, positive = (
        bool(call.attribute(f"detect_{sign}")) for sign in ("negative", "positive")
    )
    return call.write(
        {
            (True, True): "torch.isinf({0})",
            (True, False): "torch.isneginf({0})",
            (False, True): "torch.isposinf({0})",
            (False, False): "torch.zeros_like({0}, dtype=torch.bool)",
        }[negative, positive]
    )


@torch_emitter("onnx.Gelu")
def gelu(call: Call) -> str:
    is_exact = call.attribute("approximate") == "none"
    return call.write(
        "F.gelu({0})" if is_exact else "F.gelu({0}, approximate={approximate})"
    )


@torch_emitter("onnx.Swish")
def swish(call: Call) -> str:
    if call.attribute("alpha") == 1.0:
        return call.write("F.silu({0})")
    return call.write("{0} * torch.sigmoid({alpha} * {0})")


@torch_emitter("onnx.Shrink")
def shrink(call: Call) -> str:
    x, bias, limit = call.operand(0), call.attribute("bias"), call.attribute("lambd")
    return (
        f"torch.where({x} < {-limit!r}, {x} + {bias!r}, "
        f"torch.where({x} > {limit!r}, {x} - {bias!r}, 0)).to({call.result_dtype()})"
    )


@torch_emitter("onnx.CumSum", "onnx.CumProd")
def cumulative(call: Call) -> str:
    kind = "sum" if call.op.name == "onnx.CumSum" else "prod"
    function = f"torch.cum{kind}"
    if not call.attribute("exclusive") and not call.attribute("reverse"):
        return call.write(f"{function}({{0}}, {{1:integer}}, dtype={{result:dtype}})")
    return call.write(
        "cumulative({function}, {0}, {1:integer}, exclusive={exclusive:flag}, "
        "reverse={reverse:flag})",
        "numeric",
        function=function,
    )


@torch_emitter("onnx.Dropout")
def dropout(call: Call) -> list[str] | str:
    training = call.constant(2)
    ratio = call.constant(1)
    off = not call.has(2) or (training is not None and not training.any())
    if not off and not (ratio is not None and not ratio.any()):
        raise call.fail(
            "dropout in training mode is random; make a training step of the program, or "
            "export it in evaluation mode"
        )
    lines = [call.operand(0), f"torch.ones_like({call.operand(0)}, dtype=torch.bool)"]
    return lines[: len(call.op.results)]


@torch_emitter("train.swish_grad")
def swish_gradient(call: Call) -> str:
    if call.attribute("alpha") == 1.0:
        return call.write("torch.ops.aten.silu_backward({0}, {1})")
    # With z = alpha * x, swish(x) = silu(z) / alpha: the slope at x is silu's at z.
    return call.write("torch.ops.aten.silu_backward({0}, {alpha} * {1})")


@torch_emitter("train.dropout")
def trained_dropout(call: Call) -> str:
    op = call.op
    assert isinstance(op, DropoutOp)
    call.helper("random_numbers")
    arguments = [
        *call.operands(),
        f"key={(op.seed.value.data, op.stream.value.data)!r}",
        f"threshold={op.threshold!r}",
        f"scale={op.kept_factor!r}",
    ]
    if op.parts:
        splits = [tuple(split) for split in op.parts]
        arguments += [f"shape={op.whole_shape!r}", f"splits={splits!r}"]
    function = "dropout" if op.mask is None else "dropout_and_mask"
    given = ", ".join(arguments)
    return call.write(f"{function}({{given}})", "dropout", given=given)
