"""The conventions of programs."""

from __future__ import annotations

import pytest
from support.programs import parse
from xdsl.context import Context
from xdsl.dialects import test
from xdsl.dialects.builtin import Builtin, i64
from xdsl.parser import Parser

from distir.errors import DistIRError
from distir.program import (
    argument_roles,
    check_links,
    entry_function,
    forward_results,
    name_hint,
    parameters_of_gradients,
    parameters_of_states,
    updated_arguments,
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("/layer/Add_output_0", "Add_output_0"),
        ("onnx::MatMul_12", "MatMul_12"),
        ("0.weight", "_0_weight"),
        ("0_weight_exp_avg", "_0_weight_exp_avg"),
        ("dénse/kernel:0", "kernel_0"),
        ("wéight", "w_ight"),
        ("12", None),
        ("1_2", None),
        ("_1_2_3", None),
        ("é", None),
        ("", None),
    ],
)
def test_hints_are_names_that_can_be_read_back(name: str, hint: str | None):
    assert name_hint(name) == hint
    op = test.TestOp(result_types=[i64])
    op.results[0].name_hint = name_hint(name)
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(test.Test)
    read = Parser(context, str(op)).parse_op()
    assert read.results[0].name_hint == op.results[0].name_hint


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('dist.of = "w"}, %x', 'dist.of = "v"}, %x', "argument 1 is a state of .*'v'"),
        ('dist.updates = "w"', 'dist.updates = "v"', "result 1 updates .*'v'"),
        ('dist.of = "w"})', 'dist.of = "v"})', "result 2 is the gradient of .*'v'"),
        (
            'dist.name = "w", ',
            "",
            "result 1 updates an argument 'w', which is not there",
        ),
        ('dist.name = "m"', 'dist.name = "w"', "updates .* 'w', but several have this"),
    ],
)
def test_links_to_nothing(before: str, after: str, message: str) -> None:
    """Only `dist.name` is what a link names, not the name of the value."""
    w = "tensor<4x4xf32>"
    text = f"""
        func.func @main(%w: {w} {{dist.name = "w", dist.role = "parameter"}},
          %m: {w} {{dist.name = "m", dist.role = "state", dist.of = "w"}}, %x: {w})
          -> ({w} {{dist.role = "loss"}}, {w} {{dist.updates = "w"}},
              {w} {{dist.role = "gradient", dist.of = "w"}}) {{
          func.return %x, %m, %x : {w}, {w}, {w}
        }}"""
    function = entry_function(parse(text))
    check_links(function)
    assert parameters_of_states(function) == {1: 0}
    assert updated_arguments(function) == {1: 0}
    assert parameters_of_gradients(function) == {2: 0}
    assert forward_results(function) == [0]
    assert text.count(before) == 1
    with pytest.raises(DistIRError, match=message):
        check_links(entry_function(parse(text.replace(before, after))))


def test_roles_that_are_misspelt() -> None:
    module = parse("""
      func.func @main(%w: tensor<4xf32> {dist.role = "paramter"}) -> tensor<4xf32> {
        func.return %w : tensor<4xf32>
      }""")
    with pytest.raises(DistIRError, match=r"'paramter' .* did you mean 'parameter'\?"):
        argument_roles(entry_function(module))
