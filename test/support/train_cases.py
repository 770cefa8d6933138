"""At least one case for every op of the `train` dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    StringAttr,
    TensorType,
    f16,
    f32,
    f64,
    i1,
    i64,
)
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.activation import (
    GeluGradOp,
    LogSoftmaxGradOp,
    ReluGradOp,
    ShrinkGradOp,
    SoftmaxGradOp,
    SwishGradOp,
)
from distir.dialects.train_ops.adafactor import (
    AdafactorOp,
    FactoredDirectionOp,
    FactorSumsOp,
    SecondMomentOp,
)
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    MergeAttentionOp,
    PlacedAttentionGradOp,
    PlacedAttentionOp,
)
from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
    GhostBatchNormGradOp,
    GhostBatchNormOp,
)
from distir.dialects.train_ops.block_floats import (
    BLOCK_RECIPES,
    BlockLinearOp,
    BlockProductOp,
    quantize_blocks,
    scale_shape,
)
from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradInputOp,
    ConvGradWeightOp,
    MaxPoolGradOp,
)
from distir.dialects.train_ops.cumulative import CumProdGradOp
from distir.dialects.train_ops.determinant import SlogdetGradOp, SlogdetOp
from distir.dialects.train_ops.dropout import (
    DropoutGradOp,
    DropoutOp,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    DispatchOp,
    ExpertPlacesOp,
    GroupedProductGradOp,
    GroupedProductOp,
)
from distir.dialects.train_ops.flattening import FlattenOp, UnflattenOp
from distir.dialects.train_ops.float8 import (
    FORMATS,
    Float8ProductOp,
    Float8ScaleOp,
    ToFloat8Op,
    float8_linear,
)
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.dialects.train_ops.lamb import LambDirectionOp, LambOp
from distir.dialects.train_ops.lion import LionOp
from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    CtcLossGradOp,
    CtcLossOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.dialects.train_ops.muon import MuonMomentumOp, MuonOp, OrthogonalizeOp
from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    RmsNormGradOp,
    RmsNormOp,
)
from distir.dialects.train_ops.optimizers import (
    STEP_SETTINGS,
    AdamOp,
    AdamWOp,
    SgdOp,
    SquareSumOp,
)
from distir.dialects.train_ops.paged_attention import (
    PagedAttentionOp,
    PagedReadOp,
    PagedWriteOp,
)
from distir.dialects.train_ops.quantized_rows import (
    DequantizeGroupsOp,
    DequantizeRowsOp,
    QuantizeRowsOp,
)
from distir.dialects.train_ops.quantized_states import (
    DequantizeStateOp,
    QuantizeStateOp,
)
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
    FLOAT8,
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.dialects.train_ops.recurrent import (
    GatheredGruGradOp,
    GatheredGruOp,
    GatheredLayerOp,
    GatheredLstmGradOp,
    GatheredLstmOp,
    GatheredOp,
    GatheredRnnGradOp,
    GatheredRnnOp,
    GruGradOp,
    LstmGradBase,
    LstmGradOp,
    RnnGradOp,
)
from distir.dialects.train_ops.resampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
    ResizeGradOp,
)
from distir.dialects.train_ops.selective_scan import (
    SelectiveScanGradOp,
    SelectiveScanOp,
)
from distir.dialects.train_ops.split_attention import SplitAttentionOp, WriteSlotsOp
from distir.dialects.train_ops.splits import Split
from support.sharding_harness import Array, Case, sequential

_rng = np.random.default_rng(11)


def real(*shape: int, dtype: Any = np.float32) -> Array:
    """Returns normally distributed numbers."""
    return _rng.standard_normal(shape).astype(dtype)


def positive(*shape: int, dtype: Any = np.float32) -> Array:
    """Returns numbers between a half and one."""
    return _rng.uniform(0.5, 1.0, shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Array:
    """Returns whole numbers, `high` excluded."""
    return _rng.integers(low, high, shape).astype(dtype)


def scalar(value: Any, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def coarse(*shape: int, dtype: Any = np.float32) -> Array:
    """Returns multiples of 1/64 around 0, whose sums are exact in half precision."""
    return (np.round(_rng.standard_normal(shape) * 64) / 64).astype(dtype)


CASES: list[Case] = []


def case(
    make: Callable[..., Operation], *inputs: Array, label: str = "", **options: Any
):
    """Adds a case of the op that `make` builds from its operands and these options."""
    CASES.append(
        Case(
            getattr(make, "name", make.__name__),
            inputs,
            options,
            label=label or ",".join(f"{k}={v}" for k, v in options.items()),
            make=lambda operands: make(*operands, **options),
        )
    )


def _dequantized(codes: Any, scales: Any, **options: Any) -> Operation:
    """Returns the op that makes an f32 state of codes."""
    state = TensorType(f32, shape_of(codes))
    return DequantizeStateOp(codes, scales, state=state, **options)


_dequantized.name = DequantizeStateOp.name
_labels = integers(0, 6, 4, 12)
_padded = np.where(_rng.random((4, 12)) < 0.3, -100, _labels)
for _options in ({}, {"divisor": 48}, {"divisor": 48, "ignore_index": -100}):
    _some = _padded if "ignore_index" in _options else _labels
    case(CrossEntropyOp, real(4, 12, 6), _some, **_options)
    case(CrossEntropyGradOp, scalar(0.5), real(4, 12, 6), _some, **_options)
case(CrossEntropyOp, real(12, 6, dtype=np.float16), integers(0, 6, 12, dtype=np.int32))
case(
    CrossEntropyGradOp,
    scalar(2),
    real(12, 6, dtype=np.float16),
    integers(0, 6, 12, dtype=np.int32),
)

# The steps of a cross-entropy whose classes are split. Labels may be none of the classes.
_rng = np.random.default_rng(16)
_spread = integers(-3, 9, 4, 12)
for _logits, _places in (
    (real(4, 12, 6), _spread),
    (real(4, 12, 6, dtype=np.float16), _spread.astype(np.int32)),
):
    _numbers = [positive(4, 12), positive(4, 12)]
    case(LogitMaximumOp, _logits)
    case(ExponentialSumOp, _logits, real(4, 12))
    case(LabelLogitOp, _logits, _places)
    case(CrossEntropyPartGradOp, scalar(0.5), _logits, _places, *_numbers, divisor=6)
    case(
        *(CrossEntropyPartGradOp, scalar(2), _logits, _places, *_numbers),
        ignore_index=4,
    )
_numbers = [real(4, 12), positive(4, 12), real(4, 12)]
for _options in ({"divisor": 48}, {"ignore_index": -100}, {"ignore_index": 2}):
    _some = _padded if -100 in _options.values() else _labels
    case(CrossEntropySumOp, *_numbers, _some, classes=6, **_options)

# Attention
_rng = np.random.default_rng(13)


def attention_cases(dy: Array, *operands: Array, label: str = "", **options: Any):
    """Adds cases of attention, and of its gradient from what it computes."""
    case(AttentionOp, *operands, label=label, **options)
    forward = sequential(CASES[-1]).results
    case(AttentionGradOp, dy, *forward, *operands, label=label, **options)


_dy, _q, _few = coarse(2, 6, 4, 4), real(2, 6, 4, 4), [real(2, 3, 4, 4)] * 2
_kv = [real(2, 6, 6, 4), real(2, 6, 6, 4)]
attention_cases(_dy, _q, *_kv)
attention_cases(_dy, _q, *_kv, is_causal=True)
attention_cases(_dy, _q, *_few, scale=0.25, label="groups")
attention_cases(_dy, _q, *_few, is_causal=True, label="causal groups")
attention_cases(_dy, _q, *_kv, real(4, 6), label="mask")
attention_cases(_dy, _q, *_kv, real(2, 6, 1, 1), label="mask per head")
attention_cases(_dy, _q, *_few, real(4) > -1, is_causal=True, label="causal mask")
attention_cases(_dy, _q, *_few, np.eye(4) < [[1], [1], [1], [0]], label="blind")
attention_cases(_dy, _q, *_few, real(4, 4), softcap=0.5, is_causal=True)
_wide_values = (real(2, 6, 6, 4), real(2, 6, 6, 2))
attention_cases(coarse(2, 6, 4, 2), _q, *_wide_values, label="narrow values")
_heads = {"q_num_heads": 6, "kv_num_heads": 3}
_packed = [coarse(2, 4, 24), real(2, 4, 24), real(2, 6, 12), real(2, 6, 12)]
attention_cases(*_packed, **_heads)
attention_cases(*_packed, real(2, 1, 4, 6), **_heads, label="packed mask")
attention_cases(*(a.astype(np.float16) for a in _packed), **_heads, is_causal=True)
_wide = [a.astype(np.float64) for a in _packed]
attention_cases(*_wide, **_heads, is_causal=True, label="f64")

attention_cases(_dy, _q, *_few, blocks=2, label="blocks")
attention_cases(*(a.repeat(3, 1) for a in _packed), **_heads, blocks=2, run=3)


def placed_attention_cases(dy: Array, *operands: Array, label: str, **options: Any):
    """
    Yields the cases of attention with positions, of its gradient, and of its results merged
    with themselves.
    """
    case(PlacedAttentionOp, *operands, label=label, **options)
    y, sums = forward = sequential(CASES[-1]).results
    case(PlacedAttentionGradOp, dy, *forward, *operands, label=label, **options)
    case(MergeAttentionOp, y, sums, dy, np.flip(sums, 2).copy(), label=label)


_rng = np.random.default_rng(26)
_places = [np.array([5, 0, 3, 9]), np.array([4, 1, 2, 8, 7, 3])]
placed_attention_cases(_dy, *_places, _q, *_kv, label="positions")
placed_attention_cases(_dy, *_places, _q, *_kv, real(4, 6), label="positions and mask")
placed_attention_cases(
    *(_dy, _places[0], _places[1][:4], _q, *_few),
    blocks=2,
    softcap=0.5,
    label="in blocks",
)
placed_attention_cases(_packed[0], *_places, *_packed[1:], **_heads, label="packed")
placed_attention_cases(
    *(_packed[0].astype(np.float16), *_places),
    *(a.astype(np.float16) for a in _packed[1:]),
    **_heads,
    label="packed f16",
)

# Caches in pages, of two pools that two sequences each share. One page is missing.
_rng = np.random.default_rng(38)
_table = np.array([[0, 3, 5], [4, 1, -1], [2, 0, 1], [3, 4, 5]])
_shown = np.arange(6) <= np.array([5, 3, 0, 4])[:, None, None, None]
_added = np.where(_shown, real(4, 1, 1, 6), -np.inf).astype(np.float32)
for _key_heads in (6, 2):
    _pool = (2, 6, _key_heads, 2, 4)
    for _mask, _scale in ((_shown, None), (_added, 0.25)):
        case(
            *(PagedAttentionOp, real(4, 6, 1, 4), real(*_pool), real(*_pool)),
            *(_table, _mask),
            scale=_scale,
            label=f"{_key_heads} heads, scale={_scale}",
        )
case(
    *(PagedAttentionOp, real(4, 6, 4, 4), real(2, 6, 2, 2, 4), real(2, 6, 2, 2, 6)),
    *(_table, np.broadcast_to(_shown, (4, 1, 4, 6)).copy()),
    label="several queries, wide values",
)
case(PagedReadOp, real(2, 6, 6, 2, 4), _table)
case(
    *(PagedWriteOp, coarse(2, 6, 6, 2, 4), coarse(4, 6, 4, 4)),
    *(_table, np.array([-2, 1, 0, 4])),
)
case(
    *(PagedWriteOp, integers(-60, 60, 2, 6, 6, 2, 4, dtype=np.int8)),
    *(integers(-60, 60, 4, 6, 4, 4, dtype=np.int8), _table, np.array([-2, 1, 0, 4])),
    label="8 bits",
)
case(
    *(PagedWriteOp, coarse(2, 6, 6, 2), coarse(4, 6, 4), _table),
    np.array([-2, 1, 0, 4]),
    label="a number for each head",
)
case(
    *(PagedWriteOp, coarse(4, 3, 2, 2, 4), coarse(4, 2, 1, 4)),
    *(_table.clip(max=2), np.array([-1, 4, 7, -3])),
    label="nothing is written",
)

# Attention over caches that are split along positions
_part_shown = np.array([[1, 1, 0, 0, 0, 0, 1, 0], [0, 1, 1, 1, 1, 1, 1, 1]] * 2, bool)
_part_shown = _part_shown.reshape(4, 1, 1, 8)
for _key_heads, _mask in ((2, _part_shown), (6, real(4, 1, 1, 8)), (1, None)):
    case(
        *(SplitAttentionOp, real(4, 6, 1, 4), real(4, _key_heads, 8, 4)),
        *(real(4, _key_heads, 8, 6), *(() if _mask is None else (_mask,))),
        splits=4,
        label=f"{_key_heads} heads",
    )
case(
    *(SplitAttentionOp, real(2, 4, 4, 4), real(2, 2, 8, 4), real(2, 2, 8, 4)),
    *(real(2, 4, 4, 8),),
    splits=2,
    scale=0.25,
    softcap=2.0,
    label="several queries, soft cap",
)
for _tokens in (1, 4):
    case(
        *(WriteSlotsOp, coarse(4, 6, 8, 4), coarse(4, 6, _tokens, 4)),
        *(np.array([14, 0, 7, 13]), np.arange(8)),
        total=16,
        label=f"{_tokens} tokens",
    )
case(
    *(WriteSlotsOp, integers(-60, 60, 4, 6, 8, dtype=np.int8)),
    *(integers(-60, 60, 4, 6, 1, dtype=np.int8), np.array([14, 0, 7, 13])),
    np.arange(8),
    total=8,
    label="a number for each head",
)

# Sums at indexed places
_rng = np.random.default_rng(32)
for _dtype, _element in ((np.float32, f32), (np.float16, f16)):
    case(
        *(ScatterSumOp, coarse(12, 4, dtype=_dtype), integers(-6, 6, 12, 1)),
        result=TensorType(_element, [6, 4]),
        label=f"rows {_element}",
    )
    case(
        *(ScatterSumOp, coarse(2, 12, 3, dtype=_dtype), integers(0, 4, 2, 12, 2)),
        result=TensorType(_element, [2, 6, 4, 3]),
        batch_dims=1,
        label=f"batch {_element}",
    )
    case(
        *(ScatterSumOp, coarse(2, 12, 6, dtype=_dtype), integers(-6, 6, 2, 12, 6)),
        result=TensorType(_element, [2, 6, 12]),
        axis=1,
        label=f"elements {_element}",
    )


def dropped_attention_cases(
    dy: Array,
    *operands: Array,
    mask: Array | None = None,
    label: str = "",
    **options: Any,
):
    """Adds cases of attention with dropout inside, and of its gradient."""
    options |= {"ratio": 0.25, "seed": 7, "stream": 3}
    masks = [] if mask is None else [mask]
    given = [*operands, *masks, scalar(5, np.int64)]

    def made(kind: Any) -> Callable[..., Operation]:
        """Returns what builds the op, which takes a place for a mask that is left out."""

        def make(*values: Any, **options: Any) -> Operation:
            *first, counter = values
            return kind(*first, *([] if masks else [None]), counter, **options)

        make.__name__ = kind.name
        return make

    case(made(DroppedAttentionOp), *given, label=label, **options)
    forward = sequential(CASES[-1]).results
    case(made(DroppedAttentionGradOp), dy, *forward, *given, label=label, **options)


_rng = np.random.default_rng(31)
dropped_attention_cases(_dy, _q, *_kv, label="plain")
dropped_attention_cases(
    *(_dy, _q, *_few), is_causal=True, softcap=0.5, label="causal groups"
)
dropped_attention_cases(_dy, _q, *_few, mask=real(2, 6, 4, 4), label="mask")
dropped_attention_cases(*_packed, **_heads, label="packed")
_half = [a.astype(np.float16) for a in _packed]
dropped_attention_cases(*_half, **_heads, label="packed f16")

# Mixtures of experts
_rng = np.random.default_rng(31)


def expert_cases(
    sizes: tuple[int, int, int], shards: int, places: int, *, label: str, **options: int
) -> None:
    """
    Adds cases of the ops of a mixture of 12 experts whose tokens' choices are of these sizes
    (groups, tokens, choices).
    """
    groups, tokens, _ = sizes
    ids = np.argsort(_rng.random((*sizes[:2], 12)))[..., : sizes[2]]
    rows = TensorType(i64, [shards, groups, places])
    case(
        *(ExpertPlacesOp, ids),
        experts=12,
        rows=rows,
        label=label,
        **options,
    )
    slots, row = sequential(CASES[-1]).results
    inside, outside = [shards, groups, places, 4], [groups, tokens, 4]
    for dtype, element in ((np.float32, f32), (np.float16, f16)):
        x, y = coarse(*outside, dtype=dtype), coarse(*inside, dtype=dtype)
        weights = coarse(*sizes, dtype=dtype)
        given = {"label": label}
        case(DispatchOp, x, slots, row, result=TensorType(element, inside), **given)
        case(
            *(DispatchOp, x, slots, row, weights),
            result=TensorType(element, inside),
            label=f"{label} weights",
        )
        case(CombineOp, y, slots, row, result=TensorType(element, outside), **given)
        case(
            *(CombineOp, y, slots, row, weights),
            result=TensorType(element, outside),
            label=f"{label} weights",
        )
        case(
            *(CombineWeightsGradOp, y, slots, x),
            result=TensorType(element, list(sizes)),
            **given,
        )
        wide = TensorType(element, [*inside[:3], 6])
        dy = coarse(*wide.get_shape(), dtype=dtype)
        matrices = coarse(12, 4, 6, dtype=dtype)
        case(GroupedProductOp, y, row, matrices, result=wide, taken=3, **given)
        case(
            *(GroupedProductOp, y, row, matrices.swapaxes(1, 2).copy()),
            transposed=True,
            result=wide,
            label=f"{label} transposed",
        )
        of = TensorType(element, [12, 4, 6])
        case(GroupedProductGradOp, y, row, dy, matrices=of, taken=3, **given)
        of = TensorType(element, [12, 6, 4])
        case(
            *(GroupedProductGradOp, y, row, dy),
            transposed=True,
            matrices=of,
            label=f"{label} transposed",
        )


expert_cases((6, 1, 2), 1, 2, capacity=1, label="all kept")
expert_cases((4, 6, 2), 6, 4, capacity=2, label="in shards")

# Dropout
_rng = np.random.default_rng(15)
for _dtype in (np.float16, np.float32, np.float64):
    _options = {"ratio": 0.25, "seed": 7, "stream": 2**32 - 1}
    case(DropoutOp, real(4, 6, 12, dtype=_dtype), scalar(5, np.int64), **_options)
    case(
        *(DropoutOp, real(4, 6, 12, dtype=_dtype), scalar(5, np.int64)),
        mask=TensorType(i1, [4, 6, 12]),
        label="mask",
        **_options,
    )
    case(
        *(DropoutGradOp, real(4, 6, dtype=_dtype), real(4, 6) > 0),
        ratio=0.25,
    )
case(DropoutOp, real(12, 6), scalar(2**40 + 3, np.int64), **_options, label="far")
case(DropoutOp, real(12), scalar(0, np.int64), **{**_options, "ratio": 0.0})
case(DropoutOp, scalar(1.5), scalar(1, np.int64), **_options, label="scalar")


def _part(x: Any, counter: Any, first: Any, second: Any) -> Operation:
    """Returns dropout of a part of a tensor that is too large for 32-bit positions."""
    return DropoutOp(
        x,
        counter,
        [first, second],
        ratio=0.5,
        seed=0,
        stream=0,
        global_shape=[8, 2**33, 3],
        splits=[Split(0, 2, 2), Split(1, 2**31, 2)],
    )


_part.name = "train.dropout"
case(
    *(_part, real(4, 4, 3), scalar(1, np.int64), scalar(1, np.int64)),
    scalar(2**31 - 2, np.int64),
    label="part",
)

# Batch normalisation
_rng = np.random.default_rng(14)
for _dtype in (np.float32, np.float16):
    _x = (coarse(4, 6, 2, dtype=_dtype), real(4, 6, 2, dtype=_dtype))
    _values = [real(6), positive(6)]
    case(BatchNormSumsOp, *_x, *_values, epsilon=1e-5)
    case(BatchNormVarianceOp, _x[0], real(6), count=8)
    case(BatchNormGradOp, *_x, real(6), real(6), positive(6), epsilon=1e-5)
    _values = [real(6), *_values, real(6), real(6)]
    case(BatchNormInputGradOp, *_x, *_values, epsilon=1e-5, count=8)
    _values, _parts = [real(6), real(6)], dict(groups=2, epsilon=1e-5)
    case(GhostBatchNormOp, _x[1], *_values, **_parts)
    case(GhostBatchNormGradOp, *_x, real(6), real(2, 6), positive(2, 6), **_parts)
case(BatchNormSumsOp, real(4, 6), real(4, 6), real(6), positive(6), epsilon=0.5)

# Softmax, normalisation layers, activations
_rng = np.random.default_rng(12)


def norm_cases(
    dy: Array, x: Array, *scales: Array, is_rms: bool = False, **options: Any
):
    """Adds cases of a normalisation layer, and of its gradient from what that computes."""
    layer, gradient = (
        (RmsNormOp, RmsNormGradOp) if is_rms else (LayerNormOp, LayerNormGradOp)
    )
    case(layer, x, *scales, **options)
    statistics = sequential(CASES[-1]).results[1:]
    without = {} if is_rms or len(scales) > 1 else {"dbias": None}
    case(gradient, dy, x, scales[0], *statistics, **options, **without)


for _dtype in (np.float32, np.float16):
    for _axis in (0, -1):
        for _op in (SoftmaxGradOp, LogSoftmaxGradOp):
            case(
                _op,
                coarse(6, 4, dtype=_dtype),
                -positive(6, 4, dtype=_dtype) / 8,
                axis=_axis,
            )
    _dy, _x = coarse(6, 2, 4, dtype=_dtype), real(6, 2, 4, dtype=_dtype)
    _scale, _bias = real(4, dtype=_dtype), real(4, dtype=_dtype)
    norm_cases(_dy, _x, _scale, _bias, axis=-1, epsilon=1e-5)
    norm_cases(_dy, _x, _scale, axis=2, epsilon=1e-5)
    _dy, _scale = coarse(6, 4, 2, dtype=_dtype), real(4, 2, dtype=_dtype)
    norm_cases(_dy, real(6, 4, 2), _scale, is_rms=True, axis=1, epsilon=1e-6)
    norm_cases(_dy, _dy + 1, _scale, is_rms=True, axis=1, epsilon=1e-6)
    for _name in ("none", "tanh"):
        case(
            GeluGradOp,
            coarse(6, 4, dtype=_dtype),
            real(6, 4, dtype=_dtype),
            approximate=_name,
        )
    case(ReluGradOp, coarse(6, 4, dtype=_dtype), coarse(6, 4, dtype=_dtype))
    for _alpha in (1.0, 1.5):
        case(
            SwishGradOp,
            coarse(6, 4, dtype=_dtype),
            real(6, 4, dtype=_dtype),
            alpha=_alpha,
        )
    case(
        *(ShrinkGradOp, coarse(6, 4, dtype=_dtype), real(6, 4, dtype=_dtype)),
        lambd=0.5,
    )
for _is_rms in (False, True):
    _row = [real(3, 4), real(3, 4), real(3, 4)]
    norm_cases(*_row, is_rms=_is_rms, axis=0, epsilon=0.5)


def _scale(x: Any, format: str, axis: int | None) -> Operation:
    """Returns the scale of a tensor, or those of its rows along an axis."""
    sizes = list(shape_of(x))
    if axis is not None:
        sizes[axis] = 1
    type_ = TensorType(f32, sizes if axis is not None else [])
    return Float8ScaleOp(x, format=format, axis=axis, scale=type_)


def _narrow(x: Any, scale: Any, format: str) -> Operation:
    """Returns a tensor in 8-bit floats."""
    type_ = TensorType(FORMATS[format][0], shape_of(x))
    return ToFloat8Op(x, scale, y=type_)


def _float8_product(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Operation:
    """Returns the product of tensors in 8-bit floats, in f32."""
    shape = [*shape_of(a)[:-1], shape_of(b)[1]]
    return Float8ProductOp(a, b, scale_a, scale_b, y=TensorType(f32, shape))


for _format in FORMATS:
    _dtype8 = numpy_dtype(FORMATS[_format][0])
    for _axis in (None, 0, 2):
        case(_scale, real(6, 2, 4), format=_format, axis=_axis)
    case(_narrow, 9 * real(6, 4), scalar(64.0), format=_format)  # some are too large
    case(_narrow, real(6, 4), 8 * positive(6, 1), format=_format)
    case(
        *(
            _float8_product,
            coarse(6, 2, 4).astype(_dtype8),
            coarse(4, 12).astype(_dtype8),
        ),
        *(scalar(2.0), scalar(0.25)),
    )
    case(
        *(_float8_product, coarse(6, 4).astype(_dtype8), coarse(4, 12).astype(_dtype8)),
        *(positive(6, 1), positive(1, 12)),
    )


def _in_blocks(
    x: Any, *tensor_scale: Any, recipe: str, axis: int, square: bool = False
) -> Operation:
    """Returns the conversion of a tensor to blocks."""
    return quantize_blocks(x, recipe, axis, *tensor_scale, square=square)


def _block_product(
    a: Any, b: Any, scale_a: Any, scale_b: Any, *of_tensors: Any, recipe: str
) -> Operation:
    """Returns the product of blocks, in f32."""
    is_square = shape_of(scale_b)[1] != shape_of(b)[1]
    y = TensorType(f32, [*shape_of(a)[:-1], shape_of(b)[1]])
    operands = (a, b, scale_a, scale_b, of_tensors)
    return BlockProductOp(*operands, recipe=recipe, square=is_square, y=y)


def _block_linear(a: Any, b: Any, *kept: Any, recipe: str) -> Operation:
    """Returns the product of tensors that become blocks, in f32."""
    y = TensorType(f32, [*shape_of(a)[:-1], shape_of(b)[1]])
    return BlockLinearOp(a, b, kept, recipe=recipe, y=y)


_in_blocks.name = "train.quantize_blocks"
_block_product.name = "train.block_product"
_block_linear.name = "train.block_linear"
for _name, _recipe in BLOCK_RECIPES.items():
    _n, _dtypes = _recipe.size, (_recipe.element, _recipe.scale)
    _narrow_of, _scales_of = (numpy_dtype(one) for one in _dtypes)
    _of_tensor = [scalar(64.0)] if _recipe.has_tensor_scale else []
    case(_in_blocks, real(6, 4 * _n), *_of_tensor, recipe=_name, axis=1)
    case(_in_blocks, real(2 * _n, 2, 4), *_of_tensor, recipe=_name, axis=0)
    _shapes = [scale_shape(_recipe, (2 * _n, 2 * _n), 0, False)]
    if _recipe.has_square_weights:
        _square = real(2 * _n, 4 * _n)
        case(_in_blocks, _square, *_of_tensor, recipe=_name, axis=0, square=True)
        _shapes.append(scale_shape(_recipe, (2 * _n, 2 * _n), 0, True))
    for _shape in _shapes:
        case(
            *(_block_product, coarse(4, 2, 2 * _n).astype(_narrow_of)),
            coarse(2 * _n, 2 * _n).astype(_narrow_of),
            (2.0 ** integers(-2, 3, 4, 2, 2)).astype(_scales_of),
            (2.0 ** integers(-2, 3, *_shape)).astype(_scales_of),
            *(2 * _of_tensor),
            recipe=_name,
        )
    case(_block_linear, coarse(2, 4, _n), coarse(_n, 2 * _n), recipe=_name)


def _quantized_linear(x: Any, weight: Any, *others: Any) -> Operation:
    """Returns the product with weights of 8 or, with zero points, of 4 bits."""
    type_ = TensorType(f32, [*shape_of(x)[:-1], shape_of(weight)[0]])
    kind = GroupQuantizedLinearOp if len(others) > 1 else QuantizedLinearOp
    return kind(x, weight, *others, y=type_)


def _quantized_rows(x: Any, *, element: Any) -> Operation:
    """Returns the conversion of rows to 8 bits."""
    shape = shape_of(x)
    return QuantizeRowsOp(
        x, quantized=TensorType(element, shape), scale=TensorType(f32, shape[:-1])
    )


def _dequantized_rows(rows: Any, scale: Any) -> Operation:
    """Returns the conversion of rows of 8 bits to numbers."""
    return DequantizeRowsOp(rows, scale, x=TensorType(f32, shape_of(rows)))


def _dequantized_groups(packed: Any, scale: Any, zero: Any) -> Operation:
    """Returns the conversion of groups of 4 bits to numbers."""
    shape = [*shape_of(packed)[:-1], 2 * shape_of(packed)[-1]]
    return DequantizeGroupsOp(packed, scale, zero, x=TensorType(f32, shape))


_dequantized_groups.name = DequantizeGroupsOp.name
_quantized_rows.name = QuantizeRowsOp.name
_dequantized_rows.name = DequantizeRowsOp.name
for _element, _ in EIGHT_BITS.values():
    case(_quantized_rows, real(6, 4, 8), element=_element)
    case(
        _dequantized_rows,
        coarse(6, 4, 8).astype(numpy_dtype(_element)),
        positive(6, 4),
    )

_bytes = integers(0, 256, 6, 8, dtype=np.uint8)
for _shape in ((4, 8), (4, 2, 8)):
    for _weight in (
        integers(-127, 128, 6, 8, dtype=np.int8),
        coarse(6, 8).astype(numpy_dtype(FLOAT8)),
    ):
        case(_quantized_linear, real(*_shape), _weight, positive(6))
    case(
        *(_quantized_linear, real(*_shape[:-1], 16), _bytes, positive(6, 4)),
        integers(0, 16, 6, 4, dtype=np.uint8),
    )
case(
    *(float8_linear, coarse(6, 2, 4), coarse(4, 6)),
    scaling="tensor",
    a_format="e5m2",
    b_format="e4m3",
)


def _gather(
    dy: Any, indices: Any, data: Any = None, *, rows: int, axis: int
) -> Operation:
    """
    Returns the gradient of a look-up, with rows split as those of `data` if that is given.
    """
    assert isinstance(dy.type, TensorType) and isinstance(indices.type, TensorType)
    sizes, depth = dy.type.get_shape(), indices.type.get_num_dims()
    shape = [*sizes[:axis], rows, *sizes[axis + depth :]]
    type_ = TensorType(dy.type.element_type, shape)
    return GatherGradOp(dy, indices, data, axis=axis, ddata=type_)


_gather.name = "train.gather_grad"
case(_gather, real(4, 6, 8), integers(-12, 12, 4, 6), rows=12, axis=0)
case(_gather, real(4, 6, 8), integers(-12, 12, 4, 6), real(12, 8), rows=12, axis=0)
case(
    *(_gather, real(4, 6, 2, 8), integers(-12, 12, 6, 2), real(4, 12, 8)),
    rows=12,
    axis=1,
)
case(_gather, real(4, 6), scalar(-1, np.int64), rows=3, axis=1)
case(_gather, real(6, dtype=np.float16), integers(0, 3, 6), rows=3, axis=0, label="f16")

_state = (real(4, 6), real(4, 6), real(4, 6), positive(4, 6), scalar(2, np.int64))
_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
for _make in (AdamOp, AdamWOp):
    case(_make, *_state, learning_rate=0.1, weight_decay=0.2, **_ADAM)
case(
    *(AdamWOp, real(6), real(6, dtype=np.float16), real(6), positive(6)),
    *(scalar(0, np.int64),),
    learning_rate=0.1,
    weight_decay=0.0,
    **_ADAM,
    label="f16",
)
case(SgdOp, real(4, 6), real(4, 6), learning_rate=0.1, weight_decay=0.3)
for _nesterov in (False, True):
    case(
        *(SgdOp, real(4, 6), real(4, 6), real(4, 6)),
        learning_rate=0.1,
        weight_decay=0.0,
        momentum=0.9,
        nesterov=_nesterov,
    )
case(SquareSumOp, real(4, 6))

_rng = np.random.default_rng(39)
case(
    *(_dequantized_groups, integers(0, 256, 6, 4, 8, dtype=np.uint8)),
    *(positive(6, 4, 4), integers(0, 16, 6, 4, 4, dtype=np.uint8)),
)

_rng = np.random.default_rng(47)
_decayed = {"learning_rate": 0.1, "weight_decay": 0.2}
_betas = {"beta1": 0.9, "beta2": 0.99}
_total = scalar(5.0), scalar(3.0), scalar(2, np.int64)
case(LionOp, real(4, 6), real(4, 6), real(4, 6), **_decayed, **_betas)
case(
    *(LambDirectionOp, real(4, 6), real(4, 6), real(4, 6), positive(4, 6)),
    *(scalar(2, np.int64),),
    weight_decay=0.2,
    epsilon=1e-6,
    **_betas,
)
for _squares in (_total[:2], (scalar(0.0), scalar(3.0)), (scalar(2.0), scalar(0.0))):
    case(LambOp, real(4, 6), real(4, 6), *_squares, learning_rate=0.1)
for _nesterov in (False, True):
    case(
        *(MuonMomentumOp, real(4, 6), real(4, 6)),
        momentum=0.9,
        nesterov=_nesterov,
    )
_iteration = {"steps": 3, "a": 3.4445, "b": -4.775, "c": 2.0315, "epsilon": 1e-7}
for _shape in ((4, 6), (6, 4), (2, 4, 6), (2, 6, 4)):
    case(OrthogonalizeOp, real(*_shape), label=str(_shape), **_iteration)
case(OrthogonalizeOp, real(4, 6, dtype=np.float64), label="f64", **_iteration)
case(
    OrthogonalizeOp,
    np.zeros((4, 6), np.float32),
    label="zeros",
    **_iteration,
)
case(MuonOp, real(4, 6), real(4, 6), **_decayed, scale=0.5)
for _shape in ((4, 6), (2, 4, 6)):
    case(FactorSumsOp, real(*_shape), label=str(_shape))
case(
    *(SecondMomentOp, positive(4, 1), positive(4, 1), scalar(2, np.int64)),
    count=6.0,
    beta2_decay=-0.8,
)
case(
    *(FactoredDirectionOp, real(4, 6), positive(4, 1), positive(1, 6)),
    *(positive(1, 1),),
    count=4.0,
    epsilon=1e-8,
)
for _relative in (False, True):
    case(
        *(AdafactorOp, real(4, 6), real(4, 6), *_total),
        clip_threshold=1.0,
        epsilon=1e-3,
        count=24.0,
        relative_step=_relative,
        label=f"relative={_relative}",
        **_decayed,
    )
for _signed in (False, True):
    _values = real(4, 16) if _signed else positive(4, 16)
    case(QuantizeStateOp, _values, block=4, signed=_signed)
    case(
        *(_dequantized, integers(0, 256, 4, 16, dtype=np.uint8), positive(4, 4)),
        block=4,
        signed=_signed,
    )
case(SquareSumOp, real(4, 6, dtype=np.float16) * 8)


def _shaped(make: Any, result: str) -> Callable[..., Operation]:
    """Returns a function that makes an op whose result has a shape of its own."""

    def build(*operands: Any, shape: tuple[int, ...], **options: Any) -> Operation:
        type_ = TensorType(operands[0].type.element_type, shape)
        return make(*operands, **{result: type_}, **options)

    build.name = make.name
    return build


_PLAIN = {"strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
_CONV = {**_PLAIN, "group": 1}
for _dy, _weight, _x, _windows in (
    ((6, 4, 5, 3), (4, 6, 2, 2), (6, 6, 6, 4), _CONV),
    (
        *((4, 8, 3, 4), (8, 3, 3, 2), (4, 12, 6, 5)),
        {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 0, 1], "group": 4},
    ),
    (
        *((4, 12, 4), (12, 1, 3), (4, 12, 8)),
        {"strides": [2], "dilations": [1], "pads": [1, 1], "group": 12},
    ),
    (
        *((2, 4, 2, 2, 2), (4, 6, 2, 1, 2), (2, 6, 3, 2, 3)),
        {"strides": [1, 1, 1], "dilations": [1, 1, 1], "pads": [0] * 6, "group": 1},
    ),
):
    _label = "x".join(map(str, _x))
    case(
        *(_shaped(ConvGradInputOp, "dx"), real(*_dy), real(*_weight)),
        shape=_x,
        label=_label,
        **_windows,
    )
    case(
        *(_shaped(ConvGradWeightOp, "dweight"), real(*_x), real(*_dy)),
        shape=_weight,
        label=_label,
        **_windows,
    )
for _x, _dy, _pool in (
    ((4, 6, 5, 4), (4, 6, 4, 3), {"kernel_shape": [2, 2], **_PLAIN}),
    (
        *((4, 6, 6, 7), (4, 6, 4, 4)),
        {
            "kernel_shape": [3, 3],
            "strides": [2, 2],
            "dilations": [1, 1],
            "pads": [1, 1, 1, 1],
        },
    ),
    (
        *((4, 6, 7), (4, 6, 3)),
        {"kernel_shape": [2], "strides": [2], "dilations": [2], "pads": [0, 1]},
    ),
    (
        *((2, 4, 3, 2, 4), (2, 4, 2, 1, 2)),
        {
            "kernel_shape": [2, 2, 2],
            "strides": [1, 1, 2],
            "dilations": [1, 1, 1],
            "pads": [0] * 6,
        },
    ),
):
    _label = "x".join(map(str, _x))
    case(
        *(MaxPoolGradOp, real(*_dy), real(*_x)),
        label=_label,
        **_pool,
    )
    for _padded in (False, True):
        case(
            *(_shaped(AveragePoolGradOp, "dx"), real(*_dy)),
            shape=_x,
            count_include_pad=_padded,
            label=f"{_label},count_include_pad={_padded}",
            **_pool,
        )

for _before, _after, _mode, _place in (
    ((2, 4, 3, 2), (2, 4, 6, 4), "nearest", "asymmetric"),
    ((2, 4, 3, 2), (2, 4, 7, 4), "linear", "half_pixel"),
    ((2, 4, 5), (2, 4, 8), "linear", "align_corners"),
    ((2, 4, 2, 4, 3), (2, 4, 4, 8, 6), "linear", "half_pixel"),
    ((2, 4, 5, 4), (2, 4, 10, 8), "cubic", "half_pixel"),
    ((2, 4, 6), (1, 4, 6), "linear", "half_pixel"),
):
    case(
        *(_shaped(ResizeGradOp, "dx"), real(*_after)),
        shape=_before,
        scales=DenseArrayBase.from_list(
            f64, [b / a for a, b in zip(_before, _after, strict=True)]
        ),
        mode=_mode,
        coordinate_transformation_mode=_place,
        nearest_mode="floor",
        cubic_coeff_a=-0.75,
        label=f"{_mode},{_place},{'x'.join(map(str, _before))}",
    )


def _gathered(
    op: type[GatheredLayerOp],
    types: Sequence[TensorType],
    how: dict[str, Any],
    operands: Sequence[SSAValue],
) -> Operation:
    """Makes a layer of its operands: with a bias and first states, or without both."""
    return op(
        *operands[:4], list(operands[4:]), y=types[0], last=list(types[1:]), **how
    )


for _op, _gates, _how in (
    *((op, 1, {}) for op in (RnnGradOp, GatheredRnnOp, GatheredRnnGradOp)),
    *((op, 3, {}) for op in (GruGradOp, GatheredGruOp, GatheredGruGradOp)),
    (GruGradOp, 3, {"linear_before_reset": True}),
    (GatheredGruOp, 3, {"linear_before_reset": True}),
    (GatheredGruGradOp, 3, {"linear_before_reset": True}),
    *((op, 4, {}) for op in (LstmGradOp, GatheredLstmOp, GatheredLstmGradOp)),
):
    for _direction, _count, _first in (
        ("forward", 1, False),
        ("reverse", 1, True),
        ("bidirectional", 2, False),
    ):
        _h = 6 if issubclass(_op, GatheredOp) else 2
        _x, _y, _state = (3, 4, 2), (3, _count, 4, _h), (_count, 4, _h)
        if _first:
            _x, _y, _state = (4, 3, 2), (4, 3, _count, _h), (4, _count, _h)
        _layer = [
            real(*_x),
            real(_count, _h * _gates, 2),
            real(_count, _h * _gates, _h),
        ]
        _layer.append(real(_count, 2 * _h * _gates))
        _how = {**_how, "direction": _direction, "batch_first": _first}
        _label = ",".join(map(str, _how.values()))
        if issubclass(_op, GatheredLayerOp):
            _types = [TensorType(f32, s) for s in (_y, *[_state] * _op.STATES)]
            _states = [real(*_state) for _ in range(_op.STATES)]
            for _inputs in (_layer[:3], [*_layer, *_states]):
                make = partial(_gathered, _op, _types, _how)
                label = f"{_label},{len(_inputs)}"
                CASES.append(Case(_op.name, _inputs, label=label, make=make))
            continue
        case(
            _op,
            *([real(*_state), real(*_state)] if issubclass(_op, LstmGradBase) else []),
            *(real(*_y), real(*_state), *_layer, real(*_state)),
            label=_label,
            **_how,
        )

for _x, _dt, _steps in (("f4", "f4", 5), ("f8", "f8", 4), ("f2", "f4", 3)):
    _channels, _states = (4, 6, _steps), (4, 2, _steps)
    _operands = (
        *(real(*_channels, dtype=_x), positive(*_channels, dtype=_dt)),
        -positive(6, 2, dtype=_dt),
        *(real(*_states, dtype=_x), real(*_states, dtype=_x)),
    )
    case(SelectiveScanOp, *_operands, label=_x)
    case(SelectiveScanGradOp, real(*_channels, dtype=_x), *_operands, label=_x)

for _shape, _flat, _blocks in (
    ((3, 4), (14,), None),
    ((3, 4), (12,), None),
    ((3, 4), (8, 2), [(1, 2, 2)]),
    ((3, 8), (7, 4), [(1, 4, 1)]),
    ((4, 3, 4), (13, 2, 2), [(0, 2, 2), (2, 2, 1)]),
    ((8, 2), (5, 2, 2), [(0, 2, 4), (0, 2, 2)]),
    ((), (4,), None),
):
    _label = f"{list(_shape)},{list(_flat)},{_blocks}".replace(" ", "")
    case(
        *(_shaped(FlattenOp, "flat"), real(*_shape)),
        shape=_flat,
        blocks=_blocks,
        label=_label,
    )
    case(
        *(_shaped(UnflattenOp, "tensor"), real(*_flat)),
        shape=_shape,
        blocks=_blocks,
        label=_label,
    )

for _dtype in (np.float32, np.float16, np.float64):
    for _how in ({}, {"exclusive": True}, {"reverse": True}):
        case(
            *(CumProdGradOp, coarse(6, 4, dtype=_dtype), coarse(6, 4, dtype=_dtype)),
            axis=1,
            label=f"{np.dtype(_dtype).name}{_how}",
            **_how,
        )
for _dtype in (np.float32, np.float64):
    case(SlogdetOp, real(6, 4, 4, dtype=_dtype), label=np.dtype(_dtype).name)
    case(
        *(SlogdetGradOp, real(6, dtype=_dtype), real(6, 4, 4, dtype=_dtype)),
        label=np.dtype(_dtype).name,
    )

_log_probs = np.log(positive(7, 6, 4) / 4)
_ctc = (_log_probs, integers(0, 3, 6, 3), integers(3, 8, 6), integers(0, 4, 6))
for _infinite in (False, True):
    case(CtcLossOp, *_ctc, blank=3, zero_infinity=_infinite)
case(CtcLossGradOp, real(6), *_ctc, blank=3, zero_infinity=True)

for _mode, _padding, _aligned in (
    ("linear", "zeros", True),
    ("nearest", "reflection", False),
    ("cubic", "border", False),
):
    _sampling: dict[str, Any] = {
        "mode": _mode,
        "padding_mode": _padding,
        "align_corners": _aligned,
    }
    _image, _grid, _samples = real(4, 6, 5, 3), real(4, 6, 2, 2), real(4, 6, 6, 2)
    case(
        *(_shaped(GridSampleGradInputOp, "dx"), _samples, _grid),
        shape=_image.shape,
        label=_mode,
        **_sampling,
    )
    case(GridSampleGradGridOp, _samples, _image, _grid, label=_mode, **_sampling)
case(
    *(_shaped(GridSampleGradInputOp, "dx"), real(2, 4, 2, 3, 2), real(2, 2, 3, 2, 3)),
    shape=(2, 4, 3, 2, 4),
    mode="linear",
    padding_mode="zeros",
    label="volumes",
)


def _given(parameter: Any, gradient: Any, *others: Any, **options: Any) -> Operation:
    """Returns an update that takes the last two operands as hyper-parameters."""
    buffer = others[0] if len(others) > 2 else None
    given = ArrayAttr([StringAttr(name) for name in STEP_SETTINGS])
    return SgdOp(parameter, gradient, buffer, others[-2:], given=given, **options)


_given.name = "train.sgd"
_rng = np.random.default_rng(43)
_settings = scalar(0.1, np.float64), scalar(0.3, np.float64)
_options = {"learning_rate": 1.0, "weight_decay": 0.0}
case(_given, real(4, 6), real(4, 6), *_settings, label="settings", **_options)
case(
    *(_given, real(4, 6), real(4, 6), real(4, 6), *_settings),
    label="settings and buffer",
    momentum=0.5,
    **_options,
)
