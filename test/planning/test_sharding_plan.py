"""What the choice of layouts does with layers that repeat and parameters that are shared."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.dist import layout_of
from distir.dialects.onnx import operator
from distir.frontends.models.basic import build_gpt
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.program import argument_names, entry_function, return_op
from distir.sharding.signatures import (
    Signatures,
)


def gpt(layers: int, *, train: bool, **options: object) -> ModuleOp:
    """A tied GPT over tensor-parallel devices."""
    module = build_gpt(
        layers=layers, d_model=32, heads=4, vocab=128, batch=4, seq=16, dtype="f32"
    )
    if train:
        DifferentiatePass().apply(Context(), module)
    DistributePass(**options).apply(Context(), module)  # type: ignore[arg-type]
    return module


def layout(module: ModuleOp, name: str) -> str:
    function = entry_function(module)
    index = argument_names(function).index(name)
    return str(layout_of(function.body.block.args[index].type))


def test_a_shared_embedding_is_split_for_its_gradient():
    """
    The output layer works on parts of the vocabulary. In a training step the embedding,
    the same matrix, is looked up in these parts too, so that its gradient is in parts.
    """
    name = "transformer.wte.weight"
    assert "[{t}, {}]" in layout(gpt(2, train=True, t=2), name)
    assert "{t}" not in layout(gpt(2, train=False, t=2), name)


def test_layers_between_the_first_and_the_last_are_alike():
    """One function for their forward, one for their backward."""
    module = gpt(8, train=True, t=2, d=2, zero=3)
    callees: dict[str, list[str]] = {}
    for op in entry_function(module).body.block.ops:
        if isinstance(op, CallOp):
            name = op.callee.string_value()
            kind = "backward" if "backward" in name else "forward"
            callees.setdefault(kind, []).append(name)
    assert {kind: len(names) for kind, names in callees.items()} == {
        "forward": 8,
        "backward": 8,
    }
    for names in callees.values():
        assert len(set(names[2:-2])) == 1


def test_updates_come_as_their_parameters_are_stored():
    """Each result that replaces an argument has its layout."""
    module = gpt(2, train=True, d=2, zero=3)
    function = entry_function(module)
    layouts = dict(
        zip(
            argument_names(function),
            [layout_of(arg.type) for arg in function.body.block.args],
            strict=True,
        )
    )
    returned = return_op(function)
    assert function.res_attrs is not None
    updates = [a.data.get("dist.updates") for a in function.res_attrs.data]
    seen = 0
    for value, update in zip(returned.operands, updates, strict=True):
        if update is not None:
            assert layout_of(value.type) == layouts[update.data]  # type: ignore[attr-defined]
            seen += 1
    assert seen > 20


def test_signatures():
    """Ops are alike that differ in scopes and values alone."""
    module = build_gpt(2, 32, 4, 128, 4, 16)
    main = entry_function(module).body.block
    calls = [op for op in main.ops if isinstance(op, CallOp)]
    signatures = Signatures()
    assert signatures.of(calls[0]) == signatures.of(calls[1])
    gather = next(op for op in main.ops if isinstance(op, operator("Gather")))
    product = next(op for op in main.ops if isinstance(op, operator("MatMul")))
    assert signatures.of(gather) != signatures.of(product)
    assert signatures.rule(product) is signatures.rule(product)
