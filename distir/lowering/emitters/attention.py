"""Emitters of attention, rotary embeddings and other operators of language models."""

from __future__ import annotations

from distir.dialects.torch import IN_PLACE
from distir.dialects.train_ops.attention import FusedAttentionOp
from distir.dialects.train_ops.dropout import DroppedAttentionBase
from distir.dialects.train_ops.paged_attention import PagedAttentionOp
from distir.dialects.train_ops.split_attention import SplitAttentionOp
from distir.lowering.emitter import Call, torch_emitter


def _fits_one_call(call: Call) -> bool:
    """Whether `F.scaled_dot_product_attention` computes exactly the same as the op."""
    if len(call.op.results) > 1 or any(call.has(i) for i in (4, 5, 6)):
        return False
    windows = (
        call.attribute("left_window_size", -1),
        call.attribute("right_window_size", -1),
    )
    if (
        call.attribute("softcap")
        or max(windows) >= 0
        or call.has_attribute("softmax_precision")
    ):
        return False
    if call.has(3):
        keys = call.shape(1)[-2]
        return keys > 0 and call.shape(3)[-1] == keys and call.rank(3) >= 2
    return True


@torch_emitter("onnx.Attention")
def attention(call: Call) -> str:
    operands = [call.operand(i) for i in range(3)]
    three = call.rank() == 3
    heads = call.attribute("q_num_heads"), call.attribute("kv_num_heads")
    if three:
        operands = [
            f"{x}.unflatten(-1, ({h}, -1)).transpose(1, 2)"
            for x, h in zip(operands, (heads[0], heads[1], heads[1]), strict=True)
        ]
    scale = call.attribute("scale")
    if _fits_one_call(call):
        grouped = (
            heads[0] != heads[1] if three else call.shape(0)[1] != call.shape(1)[1]
        )
        causal = call.attribute("is_causal")
        options = "" if not call.has(3) else f", {call.operand(3)}"
        if causal and call.has(3):
            # PyTorch's attention takes a mask or a causal flag, not both.
            given = f"{call.operand(3)}, {call.shape(0)[-2]}, {call.shape(1)[-2]}"
            options = f", {call.helper('attention')}.with_causal({given})"
        elif causal:
            options = ", is_causal=True"
        options += "" if scale is None else f", scale={scale!r}"
        options += ", enable_gqa=True" if grouped else ""
        # Half-precision kernels for CPUs round more often than the standard allows.
        half = call.element(0) in ("FLOAT16", "BFLOAT16")
        module = call.helper("attention") if half else "F"
        written = (
            f"{module}.scaled_dot_product_attention({', '.join(operands)}{options})"
        )
        return f"{written}.transpose(1, 2).flatten(2)" if three else written
    names = ("mask", "past_key", "past_value", "valid_keys")
    options = "".join(
        f", {name}={call.operand(i + 3)}"
        for i, name in enumerate(names)
        if call.has(i + 3)
    )
    if call.attribute("is_causal"):
        options += ", is_causal=True"
    if scale is not None:
        options += f", scale={scale!r}"
    if call.attribute("softcap"):
        options += f", softcap={call.attribute('softcap')!r}"
    for name in ("left_window_size", "right_window_size"):
        if call.attribute(name, -1) >= 0:
            options += f", {name}={call.attribute(name)}"
    if call.has_attribute("softmax_precision"):
        options += f", precision={call.dtype(call.attribute('softmax_precision'))}"
    if call.attribute("qk_matmul_output_mode"):
        options += f", scores_mode={call.attribute('qk_matmul_output_mode')}"
    if three:
        options += ", flat=True"
    given = f"{', '.join(operands)}{options}"
    return call.first(call.write("attention({given})", "attention", given=given))


@torch_emitter("onnx.RotaryEmbedding")
def rotary_embedding(call: Call) -> str:
    return call.write(
        "rotary_embedding({*}, {missing}heads={heads}, interleaved={interleaved:flag}, "
        "width={rotary_embedding_dim})",
        "attention",
        missing="None, " * (4 - call.count),
        heads=repr(call.attribute("num_heads", 0)),
    )


@torch_emitter("onnx.SwiGLU")
def swi_glu(call: Call) -> str:
    if call.attribute("alpha") == 1.0:
        return call.write("F.silu({0}) * {1}")
    return call.write("{0} * torch.sigmoid({alpha} * {0}) * {1}")


@torch_emitter("onnx.LinearAttention")
def linear_attention(call: Call) -> str:
    template = (
        "linear_attention({0}, {1}, {2}, {3}, {4}, {5}, heads={q_num_heads}, "
        "key_heads={kv_num_heads}, scale={scale}, rule={update_rule})"
    )
    return call.first(call.write(template, "attention"))


@torch_emitter("onnx.CausalConvWithState")
def causal_conv(call: Call) -> str:
    template = "causal_convolution({0}, {1}, {2}, {3}, silu={silu})"
    silu = repr(call.attribute("activation") in ("silu", "swish"))
    return call.first(call.write(template, "attention", silu=silu))


@torch_emitter(
    "train.attention",
    "train.attention_grad",
    "train.placed_attention",
    "train.placed_attention_grad",
)
def fused_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, FusedAttentionOp)
    arguments = [*call.operands(), *settings(op)]
    return call.like_op("fused_attention", arguments)


@torch_emitter("train.dropped_attention", "train.dropped_attention_grad")
def dropped_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, DroppedAttentionBase)
    for module in ("dropout", "fused_attention", "random_numbers"):
        call.helper(module)
    given, drawn = call.operands(), 1 + len(op.coordinates)
    arguments = [*given[:-drawn], *settings(op)]
    if op.mask is not None:
        mask = arguments.pop(len(given) - drawn - 1)
        arguments.append(f"mask={mask}")
    numbers = [
        *given[-drawn:],
        f"key={(op.seed.value.data, op.stream.value.data)!r}",
        f"threshold={op.threshold!r}",
        f"scale={op.kept_factor!r}",
        f"shape={op.whole_shape!r}",
        f"splits={[tuple(split) for split in op.parts]!r}",
    ]
    module = call.helper("dropped_attention")
    arguments.append(f"numbers={module}.DrawnFactors({', '.join(numbers)})")
    return call.like_op("dropped_attention", arguments)


def settings(op: FusedAttentionOp) -> list[str]:
    """
    Returns the settings of an attention op that differ from their defaults, as keyword
    arguments in source text.
    """
    arguments: list[str] = []
    if op.block_count > 1:
        arguments.append(f"blocks={(op.block_count, op.run_length)!r}")
    if op.scale is not None:
        arguments.append(f"scale={op.scale.value.data!r}")
    if op.cap is not None:
        arguments.append(f"softcap={op.cap!r}")
    if op.is_causal is not None:
        arguments.append("is_causal=True")
    if op.q_num_heads is not None and op.kv_num_heads is not None:
        heads = op.q_num_heads.value.data, op.kv_num_heads.value.data
        arguments.append(f"heads={heads!r}")
    return arguments


@torch_emitter("train.paged_attention")
def paged_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, PagedAttentionOp)
    pages, table = call.helper("paged_attention"), call.operand(3)
    read = [f"{pages}.read({call.operand(i)}, {table})" for i in (1, 2)]
    options = "" if op.scale is None else f", scale={op.scale.value.data!r}"
    if call.shape(0)[1] != op.sizes.heads:
        options += ", enable_gqa=True"
    # Half-precision kernels for CPUs round more often than the standard allows.
    half = call.element(0) in ("FLOAT16", "BFLOAT16")
    module = call.helper("attention") if half else "F"
    given = ", ".join([call.operand(0), *read, call.operand(4)])
    return f"{module}.scaled_dot_product_attention({given}{options})"


@torch_emitter("train.paged_read")
def paged_read(call: Call) -> str:
    return call.write("read({*})", "paged_attention")


@torch_emitter("train.paged_write")
def paged_write(call: Call) -> str:
    in_place = ", in_place=True" if IN_PLACE in call.op.attributes else ""
    return call.write(f"write({{*}}{in_place})", "paged_attention")


@torch_emitter("train.split_attention")
def split_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, SplitAttentionOp)
    arguments = [*call.operands(), *settings(op), f"splits={op.split_count}"]
    return call.like_op("split_attention", arguments)


@torch_emitter("train.write_slots")
def write_slots(call: Call) -> str:
    in_place = ", in_place=True" if IN_PLACE in call.op.attributes else ""
    return call.write(f"write_slots({{*}}, {{total}}{in_place})", "split_attention")
