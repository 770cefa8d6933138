"""Programs with several entries, taken apart and joined again."""

from __future__ import annotations

import pytest
from support.cost_programs import parse

from distir.errors import DistIRError
from distir.program import Program, entry_function, entry_points, is_training_step
from distir.program.entries import (
    chosen_entry,
    joined,
    one_entry,
    shared_arguments,
)

PARAMETER = '{dist.role = "parameter", dist.name = "w"}'
CACHE = '{dist.role = "cache", dist.name = "c"}'
UPDATE = '{dist.name = "c", dist.updates = "c"}'


def step(name: str, width: int, entry: str | None = None) -> str:
    """A step that adds `w` to a cache by a function @layer, and returns what it adds."""
    of = f"attributes {{dist.entry = {chr(34)}{entry or name}{chr(34)}}} "
    x, c = f"tensor<{width}xf32>", "tensor<4xf32>"
    return f"""
  func.func @{name}(%x: {x}, %w: tensor<1xf32> {PARAMETER}, %c: {c} {CACHE})
      -> ({x} {{dist.name = "y"}}, {c} {UPDATE}) {of if entry != "" else ""}{{
    %y = func.call @layer_{name}(%x, %w) : ({x}, tensor<1xf32>) -> {x}
    %d = onnx.Add(%c, %w) : ({c}, tensor<1xf32>) -> {c}
    func.return %y, %d : {x}, {c}
  }}
  func.func private @layer_{name}(%x: {x}, %w: tensor<1xf32>) -> {x} {{
    %y = onnx.Add(%x, %w) : ({x}, tensor<1xf32>) -> {x}
    func.return %y : {x}
  }}"""


TEXT = step("prefill", 3) + step("decode", 1)


def test_an_entry_is_a_program() -> None:
    module = parse(TEXT)
    assert list(entry_points(module)) == ["prefill", "decode"]
    decode = one_entry(module, "decode")
    program = Program(decode)
    assert program.entry.sym_name.data == "main"
    assert not entry_points(decode)
    assert len(program.functions) == 2
    assert program.updates == {1: 2}
    assert not is_training_step(program.entry)
    assert list(shared_arguments(decode)) == ["w", "c"]
    assert list(entry_points(module)) == ["prefill", "decode"]  # left as it was


def test_joined_entries_keep_their_functions_apart() -> None:
    module = parse(TEXT)
    parts = {name: one_entry(module, name) for name in entry_points(module)}
    for part in parts.values():
        for function in Program(part).functions[:-1]:
            function.sym_name = type(function.sym_name)("layer")
            (call,) = (o for o in Program(part).entry.walk() if o.name == "func.call")
            call.properties["callee"] = type(call.properties["callee"])("layer")
    whole = joined(parts)
    whole.verify()
    names = [op.sym_name.data for op in whole.body.block.ops]
    assert names == ["prefill", "layer", "decode", "layer_1"]
    for name in entry_points(whole):
        one_entry(whole, name).verify()


def test_the_entry_has_to_be_chosen() -> None:
    module = parse(TEXT)
    with pytest.raises(DistIRError, match=r"entries prefill and decode; .* --entry"):
        entry_function(module)
    with pytest.raises(DistIRError, match="choose one, with --entry decode"):
        chosen_entry(module, None)
    with pytest.raises(DistIRError, match="no entry 'decod'; did you mean 'decode'"):
        chosen_entry(module, "decod")
    main = one_entry(module, "decode")
    assert chosen_entry(main, None) is main
    with pytest.raises(DistIRError, match="no public function 'decode'; it has main"):
        chosen_entry(main, "decode")


def test_entries_that_do_not_fit_are_refused() -> None:
    twice = parse(step("a", 1, "decode") + step("b", 1, "decode"))
    with pytest.raises(DistIRError, match="@a and @b are both the entry"):
        entry_points(twice)
    parts = {name: one_entry(parse(TEXT), name) for name in ("prefill", "decode")}
    other = TEXT.replace("tensor<4xf32>", "tensor<5xf32>")
    parts["decode"] = one_entry(parse(other), "decode")
    with pytest.raises(DistIRError, match="argument 'c' is cache tensor<5xf32> in dec"):
        joined(parts)
