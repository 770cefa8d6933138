"""Models in 16 bits and under autocast give what PyTorch gives for them, up to rounding."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from support.parallel_families import FAMILIES, Family
from support.thoroughness import chosen

import distir
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.facade.model_program import ModelProgram
from distir.interpreters.reference import run_program
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    result_names,
)

Arrays = dict[str, np.ndarray[Any, Any]]


def by_torch(family: Family, mode: str) -> Arrays:
    """The gradients of the parameters, in f32, as PyTorch computes them."""
    module, inputs = copy.deepcopy(family.module).train(), dict(family.inputs)
    if mode == "dtype":
        module = module.to(torch.bfloat16)
        inputs = {
            n: v.to(torch.bfloat16) if v.is_floating_point() else v
            for n, v in inputs.items()
        }
    with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        output = module(**inputs)
    logits = getattr(output, "logits", output)
    family.plain_loss(logits.float(), family.labels).backward()
    parameters = module.named_parameters(remove_duplicate=False)
    return {n: p.grad.float().numpy() for n, p in parameters if p.grad is not None}


def by_program(family: Family, **options: Any) -> tuple[Arrays, ModelProgram]:
    """The same by the program that is imported with these options."""
    program = distir.import_model(
        family.module.train(),
        (),
        family.inputs,
        training=True,
        loss="cross_entropy",
        optimizer="none",
        **options,
    )
    function = entry_function(program.module)
    given = {
        **{n: v.numpy() for n, v in family.inputs.items()},
        "labels": family.labels.numpy(),
        **program.weights,
    }
    values = [
        given.get(name, np.zeros(type_.get_shape(), numpy_dtype(type_.element_type)))  # type: ignore[attr-defined]
        for name, type_ in zip(
            argument_names(function), function.function_type.inputs.data, strict=True
        )
    ]
    results = run_program(program.module, values)
    return {
        name.removesuffix(".gradient"): np.asarray(value, np.float32)
        for name, value in zip(result_names(function), results, strict=True)
        if name.endswith(".gradient")
    }, program


def distance(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The norm of the difference of all gradients, relative to that of `wanted`."""
    squares = sum(((found[n] - wanted[n]) ** 2).sum() for n in found)
    return float(np.sqrt(squares / sum((wanted[n] ** 2).sum() for n in found)))


@pytest.mark.parametrize(
    ("name", "mode"),
    chosen(
        [
            *((name, "autocast") for name in ("llama", "resnet", "t5", "bert", "vit")),
            *((name, "dtype") for name in ("vit", "bert", "llama", "resnet", "t5")),
        ],
        [("llama", "autocast"), ("bert", "dtype")],
    ),
)
def test_gradients_in_bf16_are_as_far_from_f32_as_those_of_pytorch(
    name: str, mode: str
) -> None:
    """
    Both round to 8 bits, here and there at other places: neither is right, but both have to
    be equally near. A list that is too narrow or too wide, or a norm, mask or table in 16
    bits, shows as a distance that is several times PyTorch's or a fraction of it. Gradients
    of biases are sums, which the reference interpreter adds up in 16 bits, PyTorch in 32:
    they are compared with the rest, less strictly.
    """
    torch.manual_seed(0)
    family = FAMILIES[name]()
    exact = by_torch(family, "f32")
    theirs = by_torch(family, mode)
    found, program = by_program(family, **{mode: "bf16"})
    assert found.keys() <= exact.keys() and len(found) > 10
    matrices = {n: gradient for n, gradient in found.items() if gradient.ndim > 1}
    for gradients, most in ((matrices, 1.6), (found, 3.0)):
        wanted = distance({n: theirs[n] for n in gradients}, exact)
        assert 0.4 * wanted < distance(gradients, exact) < most * wanted
    function = entry_function(program.module)
    stored = {
        str(type_.element_type)  # type: ignore[attr-defined]
        for type_, role in zip(
            function.function_type.inputs.data, argument_roles(function), strict=True
        )
        if role == "parameter"
    }
    assert stored == {"bf16" if mode == "dtype" else "f32"}
    for parameter in family.module.state_dict():
        if mode == "dtype" and parameter in found:
            assert program.weights[parameter].dtype.name == "bfloat16"


def test_a_model_in_16_bits_is_imported_in_32() -> None:
    torch.manual_seed(0)
    family = FAMILIES["llama"]()
    exact = by_torch(family, "f32")
    narrow = Family(family.module.to(torch.bfloat16), *list(vars(family).values())[1:])
    found, _ = by_program(narrow, dtype="f32")
    # What is left is the rounding of the parameters.
    assert distance(found, exact) < 0.02


def test_autocast_leaves_what_is_in_f64() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Softmax(-1)).double()
    x = torch.ones(2, 4, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(x).dtype == torch.float64
    program = distir.import_model(module, (x,), autocast="bf16")
    values = [v for op in entry_function(program.module).walk() for v in op.results]
    assert values and {str(v.type.element_type) for v in values} == {"f64"}  # type: ignore[attr-defined]
