"""
The ops that `distir calibrate` measures on one device, with tensors that are smaller
and tensors that are larger than the device's caches.

Activations are [rows, width] or [batch, heads, rows, columns]. A probe named `A of B`
measures op A on an operand that op B returns, if this makes a difference. For example,
Reshape of Transpose and MatMul of Transpose get a view that must be copied, and Add of
MatMul is a sum that becomes part of the product's own call.
"""

from __future__ import annotations

from collections.abc import Iterator

from distir.calibration.probe import Probe, onnx, tensor, written

ROWS = ((16, 64), (64, 256), (256, 256), (128, 1024), (256, 2048))
"""Rows and widths of activations: 4 kB to 2 MB of f32."""

SQUARES = ((2, 2, 32), (4, 4, 64), (4, 4, 128), (8, 8, 128))
"""Batch, heads and length of square attention scores."""

LAYERS = (
    (4, 512, 512),
    (8, 1024, 1024),
    (16, 256, 256),
    (32, 512, 512),
    (32, 1024, 1024),
    (64, 128, 128),
    (128, 256, 256),
    (128, 256, 1024),
    (128, 1024, 256),
    (128, 768, 768),
    (256, 128, 384),
    (256, 512, 128),
    (256, 768, 768),
)
"""Rows, inputs and outputs of linear layers."""

PARAMETERS = ((64,), (512,), (64, 256), (256, 256), (256, 1024), (1024, 1024))
"""Shapes of parameters that an optimizer updates."""

LOOKUPS = ((4, 64, 128), (8, 64, 256), (8, 128, 512))
"""Batch, length and width of look-ups in an embedding."""

VOCABULARIES = (512, 2048)

_DIVISOR = "divisor = 64 : i64"
_SWAPPED = "perm = [0 : i64, 2 : i64, 1 : i64, 3 : i64]"


def compute_probes(element: str = "f32", scale: int = 1) -> list[Probe]:
    """
    Returns all compute probes for one element type. `scale` multiplies the rows or the
    batch size of tensors, and the rows of parameters.
    """
    return [
        probe
        for group in (
            _elementwise,
            _views,
            _reductions,
            _normalizations,
            _attention,
            _attention_steps,
            _products,
            _lookups,
            _losses,
            _split_losses,
            _optimizers,
        )
        for probe in group(element, scale)
    ]


def _elementwise(e: str, scale: int) -> Iterator[Probe]:
    for rows, width in ROWS:
        shape = rows * scale, width
        x, scalar = tensor(*shape, element=e), tensor(element=e)
        mask = tensor(*shape, element="i1")
        for name in ("Add", "Sub"):
            yield onnx(name, [x, x], [x])
        for name in ("Mul", "Div"):
            yield onnx(name, [x, scalar], [x], constants={1: f"dense<0.5> : {scalar}"})
        yield onnx("Relu", [x], [x])
        yield onnx("Gelu", [x], [x], attributes='approximate = "tanh"')
        zero = f"dense<0.0> : {scalar}"
        yield onnx("Greater", [x, scalar], [mask], constants={1: zero})
        yield onnx("Where", [mask, x, scalar], [x], constants={2: zero})
        yield written(
            "train.gelu_grad",
            {"dy": x, "x": x, "y": x},
            '%y = train.gelu_grad %dy, %x {approximate = "tanh"}',
        )
        yield written(
            "train.relu_grad", dict.fromkeys("gyx", x), "%x = train.relu_grad %g, %y"
        )
        parts = tensor(shape[0], 3 * shape[1], element=e)
        yield onnx("Concat", [x] * 3, [parts], attributes="axis = 1 : i64")


def _views(e: str, scale: int) -> Iterator[Probe]:
    for batch, heads, rows in SQUARES:
        batch *= scale
        width = 32
        apart = tensor(batch, rows, heads, width, element=e)
        merged = tensor(batch, rows, heads * width, element=e)
        swapped = tensor(batch, heads, rows, width, element=e)
        shape = tensor(3, element="i64")
        target = f"dense<[0, 0, -1]> : {shape}"
        yield onnx("Reshape", [apart, shape], [merged], constants={1: target})
        yield onnx("Transpose", [apart], [swapped], attributes=_SWAPPED)
        wide = tensor(batch, rows, 3 * heads * width, element=e)
        yield onnx(
            "Split",
            [wide, shape],
            [merged] * 3,
            attributes="axis = 2 : i64",
            constants={1: f"dense<{heads * width}> : {shape}"},
        )
        yield written(
            "onnx.Reshape of onnx.Transpose",
            {"x": swapped, "t": apart, "s": shape, "y": merged},
            f"%t = onnx.Transpose(%x) {{{_SWAPPED}}}",
            f"%s = onnx.Constant() {{value = {target}}}",
            "%y = onnx.Reshape(%t, %s)",
        )


def _reductions(e: str, scale: int) -> Iterator[Probe]:
    for rows, width in ROWS:
        rows *= scale
        x, row = tensor(rows, width, element=e), tensor(1, width, element=e)
        axes = tensor(1, element="i64")
        yield onnx(
            "ReduceSum",
            [x, axes],
            [row],
            attributes="keepdims = 1 : i64",
            constants={1: f"dense<0> : {axes}"},
        )
        both = tensor(2, element="i64")
        for name in ("ReduceMean", "ReduceSumSquare"):
            yield onnx(
                name,
                [x, both],
                [tensor(element=e)],
                attributes="keepdims = 0 : i64",
                constants={1: f"dense<[0, 1]> : {both}"},
            )


def _normalizations(e: str, scale: int) -> Iterator[Probe]:
    for rows, width in ROWS:
        rows *= scale
        x, gain = tensor(rows, width, element=e), tensor(width, element=e)
        each = tensor(rows, 1)
        norm = "axis = -1 : i64, epsilon = 1.000000e-05 : f32"
        yield onnx("LayerNormalization", [x, gain, gain], [x], attributes=norm)
        yield written(
            "train.layer_norm",
            {
                **dict.fromkeys(("x", "y"), x),
                **dict.fromkeys(("scale", "bias"), gain),
                **dict.fromkeys(("mean", "inverse"), each),
            },
            "%y, %mean, %inverse = train.layer_norm %x, %scale, %bias "
            "{axis = 1 : i64, epsilon = 1.000000e-05 : f32}",
        )
        yield written(
            "train.layer_norm_grad",
            {
                **dict.fromkeys(("dy", "x", "dx"), x),
                **dict.fromkeys(("scale", "ds", "db"), gain),
                **dict.fromkeys(("mean", "inverse"), each),
            },
            "%dx, %ds, %db = train.layer_norm_grad %dy, %x, %scale, %mean, %inverse "
            "{axis = 1 : i64, epsilon = 1.000000e-05 : f32}",
        )


def _attention(e: str, scale: int) -> Iterator[Probe]:
    """
    Yields probes of attention as one op on operands with merged heads, and of the
    gradient of this op.
    """
    for batch, heads, rows in SQUARES:
        batch *= scale
        merged_heads = f"q_num_heads = {heads} : i64, kv_num_heads = {heads} : i64"
        for width in (32, 64):
            x = tensor(batch, rows, heads * width, element=e)
            statistics = tensor(batch, heads, rows)
            yield onnx(
                "Attention",
                [x, x, x],
                [x],
                attributes=f"{merged_heads}, is_causal = 1 : i64",
            )
            yield written(
                "train.attention",
                {**dict.fromkeys("qkvy", x), "s": statistics},
                f"%y, %s = train.attention %q, %k, %v {{is_causal, {merged_heads}}}",
            )
            results = "%dq, %dk, %dv"
            yield written(
                "train.attention_grad",
                {
                    **dict.fromkeys(("dy", "q", "k", "v", "y"), x),
                    **dict.fromkeys(("dq", "dk", "dv"), x),
                    "s": statistics,
                },
                f"{results} = train.attention_grad %dy, %y, %s, %q, %k, %v "
                f"{{is_causal, {merged_heads}}}",
            )


def _attention_steps(e: str, scale: int) -> Iterator[Probe]:
    """
    Yields probes of the matrix products and elementwise ops that compute attention when
    attention is not a single op.
    """
    for batch, heads, rows in SQUARES:
        batch *= scale
        for width in (32, 64):
            scores = tensor(batch, heads, rows, rows, element=e)
            apart = tensor(batch, rows, heads, width, element=e)
            query = tensor(batch, heads, rows, width, element=e)
            key = tensor(batch, heads, width, rows, element=e)
            yield written(
                "onnx.MatMul of onnx.Transpose",
                {"a": apart, "b": apart, "q": query, "k": key, "y": scores},
                f"%q = onnx.Transpose(%a) {{{_SWAPPED}}}",
                "%k = onnx.Transpose(%b) {perm = [0 : i64, 2 : i64, 3 : i64, 1 : i64]}",
                "%y = onnx.MatMul(%q, %k)",
            )
            yield written(
                "onnx.MatMul of onnx.Softmax",
                {"p": scores, "v": apart, "t": query, "y": query},
                f"%t = onnx.Transpose(%v) {{{_SWAPPED}}}",
                "%y = onnx.MatMul(%p, %t)",
            )
            for left, result, equation in (
                (query, scores, "debc,deac->deba"),
                (scores, query, "deba,deac->debc"),
                (scores, query, "debc,deba->deca"),
            ):
                attributes = f'equation = "{equation}"'
                yield onnx("Einsum", [left, query], [result], attributes=attributes)
        yield onnx("Softmax", [scores], [scores], attributes="axis = -1 : i64")
        mask = tensor(rows, rows, element=e)
        yield written(
            "onnx.Add of onnx.Mul",
            {"x": scores, "m": mask, "y": scores},
            "%y = onnx.Add(%x, %m)",
        )
        yield written(
            "train.softmax_grad",
            {"dy": scores, "y": scores, "x": scores},
            "%x = train.softmax_grad %dy, %y {axis = -1 : i64}",
        )


def _products(e: str, scale: int) -> Iterator[Probe]:
    """
    Yields probes of the matrix products of a linear layer: of its output, of the
    gradient of its input, and of the gradient of its weight.
    """
    for rows, inputs, outputs in LAYERS:
        rows *= scale
        x = tensor(rows, inputs, element=e)
        weight = tensor(inputs, outputs, element=e)
        y, bias = tensor(rows, outputs, element=e), tensor(outputs, element=e)
        yield onnx("Gemm", [x, weight, bias], [y], parameters=[1, 2])
        yield onnx("Gemm", [x, y], [weight], attributes="transA = 1 : i64")
        transposed = "transB = 1 : i64"
        yield onnx("Gemm", [y, weight], [x], attributes=transposed, parameters=[1])
        x = tensor(4, rows // 4, inputs, element=e)
        y = tensor(4, rows // 4, outputs, element=e)
        yield onnx("MatMul", [x, weight], [y], parameters=[1])
        yield written(
            "onnx.Add of onnx.MatMul",
            {"x": x, "w": weight, "b": bias, "p": y, "y": y},
            "%p = onnx.MatMul(%x, %w)",
            "%y = onnx.Add(%p, %b)",
            parameters=["w", "b"],
        )


def _lookups(e: str, scale: int) -> Iterator[Probe]:
    for vocab in VOCABULARIES:
        for batch, rows, width in LOOKUPS:
            batch *= scale
            table = tensor(vocab, width, element=e)
            ids = tensor(batch, rows, element="i64")
            y = tensor(batch, rows, width, element=e)
            yield onnx("Gather", [table, ids], [y], below=vocab, parameters=[0])
            yield written(
                "train.gather_grad",
                {"dy": y, "ids": ids, "table": table, "g": table},
                "%g = train.gather_grad %dy, %ids like %table {axis = 0 : i64}",
                below=vocab,
            )


def _losses(e: str, scale: int) -> Iterator[Probe]:
    for vocab in VOCABULARIES:
        for batch, rows, _ in LOOKUPS:
            batch *= scale
            logits = tensor(batch, rows, vocab, element=e)
            labels, loss = tensor(batch, rows, element="i64"), tensor()
            yield written(
                "train.cross_entropy",
                {"x": logits, "labels": labels, "y": loss},
                f"%y = train.cross_entropy %x, %labels {{{_DIVISOR}}}",
                below=vocab,
            )
            yield written(
                "train.cross_entropy_grad",
                {"dy": loss, "x": logits, "labels": labels, "y": logits},
                f"%y = train.cross_entropy_grad %dy, %x, %labels {{{_DIVISOR}}}",
                below=vocab,
            )


def _split_losses(e: str, scale: int) -> Iterator[Probe]:
    """
    Yields probes of the steps of a cross-entropy whose classes are split over devices.
    """
    for vocab in VOCABULARIES:
        for batch, rows, _ in LOOKUPS:
            batch *= scale
            each = tensor(batch, rows)
            types = {
                "x": tensor(batch, rows, vocab, element=e),
                "labels": tensor(batch, rows, element="i64"),
                **dict.fromkeys(("maximum", "total", "chosen"), each),
                **dict.fromkeys(("dloss", "loss"), tensor()),
                "dx": tensor(batch, rows, vocab, element=e),
            }
            for line in (
                "%maximum = train.logit_maximum %x",
                "%total = train.exponential_sum %x, %maximum",
                "%chosen = train.label_logit %x, %labels",
                "%loss = train.cross_entropy_sum %maximum, %total, %chosen, %labels "
                f"{{classes = {vocab} : i64, {_DIVISOR}}}",
                "%dx = train.cross_entropy_part_grad %dloss, %x, %labels, %maximum, %total "
                f"{{{_DIVISOR}}}",
            ):
                used = {n: t for n, t in types.items() if f"%{n}" in line}
                name = line.split()[2]
                yield written(name, used, line, below=vocab)


def _optimizers(e: str, scale: int) -> Iterator[Probe]:
    settings = (
        "learning_rate = 1.000000e-03 : f64, weight_decay = 1.000000e-02 : f64, beta1 = "
        "9.000000e-01 : f64, beta2 = 9.990000e-01 : f64, epsilon = 1.000000e-08 : f64"
    )
    for rows, *columns in PARAMETERS:
        shape = (rows * scale, *columns)
        p, step = tensor(*shape, element=e), tensor(element="i64")
        yield Probe(
            "train.adamw",
            {"p": p, "g": p, "m": p, "v": f'{p} {{dist.role = "state"}}', "step": step},
            [
                f"%a, %b, %c = train.adamw %p, %g, %m, %v, %step {{{settings}}} : "
                f"({p}, {p}, {p}, {p}, {step}) -> ({p}, {p}, {p})"
            ],
            {"a": p, "b": p, "c": p},
            parameters=["p", "m"],
        )
