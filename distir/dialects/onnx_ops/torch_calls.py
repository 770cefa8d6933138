"""
PyTorch expressions for ONNX operators that are not elementwise, written as templates.
`distir.lowering.emitter.Call.write` defines the fields of templates. Op classes of
other dialects have their templates in `TORCH`. Operators that need more than a template
have an emitter in `distir/lowering/emitters`.
"""

from __future__ import annotations


def _window(function: str) -> str:
    return f"torch.{function}, dtype=torch.float64).to({{result:dtype}})"


_EXTREME = "{0}, {axis}, keep={keepdims:flag}, last={select_last_index:flag}"

CALLS: dict[str, dict[str, str]] = {
    "": {
        "AffineGrid": "F.affine_grid({0}, {1:integers}, align_corners={align_corners:flag})",
        "BlackmanWindow": _window("blackman_window({0:integer}, {periodic:flag}"),
        "Concat": "torch.cat(({*},), {axis})",
        "GroupNormalization": "F.group_norm({0}, {num_groups}, {1}, {2}, {epsilon:decimal})",
        # ONNX has 25/46 where others round to 0.54.
        "HammingWindow": _window(
            "hamming_window({0:integer}, {periodic:flag}, 25 / 46, 21 / 46"
        ),
        "HannWindow": _window("hann_window({0:integer}, {periodic:flag}"),
        "Identity": "{0}",
        "InstanceNormalization": "F.instance_norm({0}, weight={1}, bias={2}, eps={epsilon:decimal})",
        "LogSoftmax": "F.log_softmax({0}, {axis})",
        "NonZero": "{0}.nonzero().transpose(0, 1)",
        "Size": "torch.tensor({0}.numel())",
        "Softmax": "F.softmax({0}, {axis})",
        "Tile": "{0}.repeat({1:integers})",
        "ml.ArrayFeatureExtractor": "{0}.index_select(-1, {1}.reshape(-1))",
        "ml.Binarizer": "({0} > {threshold}).to({result:dtype})",
        # Sequences and optionals: Python lists and None.
        "Optional": "{0}",
        "OptionalGetElement": "{0}",
        "OptionalHasElement": "torch.tensor({0} is not None)",
        "SequenceAt": "{0}[{1:integer}]",
        "SequenceConstruct": "[{*}]",
        "SequenceEmpty": "[]",
        "SequenceLength": "torch.tensor(len({0}))",
    },
    "determinant": {"Det": "det({0})"},
    "indexing": {
        "Compress": "compress({0}, {1}, {axis})",
        "GatherElements": "gather_elements({0}, {1}, {axis})",
        "GatherND": "gather_nd({0}, {1}, batch_dims={batch_dims})",
        "OneHot": "one_hot({0}, {1:integer}, {2}, {axis})",
        "ReverseSequence": "reverse_sequence({0}, {1}, batch_axis={batch_axis}, time_axis={time_axis})",
        "ScatterElements": "scatter_elements({*}, {axis}, reduction={reduction})",
        "ScatterND": "scatter_nd({*}, reduction={reduction})",
    },
    "normalization": {
        "LRN": "local_response_norm({0}, {size}, {alpha}, {beta}, {bias})",
        "MeanVarianceNormalization": "mean_variance_norm({0}, {axes})",
    },
    "quantization": {
        "DynamicQuantizeLinear": "dynamic_quantize({*})",
        "MatMulInteger": "matmul_integer({*})",
        "QLinearMatMul": "q_linear_matmul({*})",
    },
    "reductions": {
        "ArgMax": f"arg_extreme(torch.argmax, {_EXTREME})",
        "ArgMin": f"arg_extreme(torch.argmin, {_EXTREME})",
        "Hardmax": "hardmax({0}, {axis})",
        "LpNormalization": "lp_normalize({0}, {p}, {axis})",
        "TopK": "top_k({0}, {1:integer}, {axis}, largest={largest:flag})",
    },
    "shapes": {"CenterCropPad": "center_crop_pad({0}, {1:integers}, {axes})"},
    "signals": {
        "MelWeightMatrix": "mel_weights({0:integer}, {1:integer}, {2:integer}, {3:number}, {4:number}).to({result:dtype})",
        "STFT": "stft({0}, {1:integer}, {2}, {3:integer}, onesided={onesided:flag})",
    },
}
"""
The templates by operator, grouped by the module of `distir/runtime` whose function they
call. The group "" needs PyTorch only.
"""

REDUCTIONS: dict[str, str] = {
    "ReduceSum": "{0}.sum({axes}, keepdim={keepdims:flag})",
    "ReduceMean": "{0}.mean({axes}, keepdim={keepdims:flag})",
    "ReduceMax": "{0}.amax({axes}, keepdim={keepdims:flag})",
    "ReduceMin": "{0}.amin({axes}, keepdim={keepdims:flag})",
    "ReduceSumSquare": "{0}.square().sum({axes}, keepdim={keepdims:flag})",
    "ReduceL1": "{0}.abs().sum({axes}, keepdim={keepdims:flag})",
    "ReduceL2": "torch.linalg.vector_norm({0}, 2, {axes}, keepdim={keepdims:flag})",
    "ReduceLogSumExp": "torch.logsumexp({0}, {axes}, keepdim={keepdims:flag})",
    "ReduceLogSum": "{0}.sum({axes}, keepdim={keepdims:flag}).log()",
}
"""
The templates of reductions over known `axes`, for the operators that PyTorch has a
function for.
"""
