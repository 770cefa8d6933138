"""Figures of single ops in a profile, and of single kinds of communication."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.universe import Universe

from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.profiles.profile import Profile

PLAIN = {"bandwidth": 1.0, "overhead": 0.5, "source": "made up"}
PROFILE: dict[str, Any] = {
    "description": "a device of round figures",
    "device": "D",
    "compute": {
        "default": {"elementwise": PLAIN, "contraction": {**PLAIN, "efficiency": 1.0}}
    },
    "dispatch": {"op": 0.0, "collective": 0.0, "source": "made up"},
    "links": {
        "l": {
            "bandwidth": 1.0,
            "overhead": 1.0,
            "latency": 0.0,
            "kinds": {
                "all_reduce": {
                    "bandwidth": 0.5,
                    "overhead": 100.0,
                    "latency": 0.0,
                    "source": "made up",
                }
            },
            "source": "made up",
        }
    },
    "ops": {
        "f32": {
            "onnx.Relu": {"overhead": 2.0, "per_byte": 1.0, "source": "made up"},
            "onnx.Relu of onnx.Relu": {
                "overhead": 3.0,
                "per_byte": 1.0,
                "beyond_cache": 10.0,
                "cache": 30.0,
                "source": "made up",
            },
            "onnx.MatMul": {"overhead": 1.0, "per_flop": 1.0, "source": "made up"},
            "onnx.Reshape": {"overhead": 7.0, "source": "made up"},
        }
    },
}
"""Relu moves 32 bytes here: 16 in, 16 out."""

CLUSTER = """
device.cluster @c {
  device.kind @D on [0 to 2] {memory = 1000 : i64, memory_bandwidth = 1.0 : f64, peak_flops = {default = 1.0 : f64}, launch_latency = 0.0 : f64}
  device.link @l spans 2 {bandwidth = 1.0 : f64, latency = 0.0 : f64}
}
"""
X = "tensor<2x2xf32>"


def module(text: str) -> ModuleOp:
    context = Context()
    for name, factory in Universe.get_multiverse().all_dialects.items():
        context.register_dialect(name, factory)
    return Parser(context, CLUSTER + text).parse_module()


def seconds(*body: str, argument: str = X, result: str = X) -> float:
    """How long a function takes whose last op gives %y."""
    lines = "\n".join(body)
    text = f"func.func @main(%x: {argument}) -> {result} {{\n{lines}\nfunc.return %y : {result}\n}}"
    return simulate(module(text), profiles=[Profile.parse("p", PROFILE)]).step_time_s


def test_a_measured_op_takes_what_it_took() -> None:
    assert seconds(f"%y = onnx.Relu(%x) : ({X}) -> {X}") == 2 + 32
    product = f"%y = onnx.MatMul(%x, %x) : ({X}, {X}) -> {X}"
    assert seconds(product) == 1 + 2 * 2 * 2 * 2


def test_other_ops_have_the_curve_of_their_class() -> None:
    assert seconds(f"%y = onnx.Neg(%x) : ({X}) -> {X}") == 0.5 + 32
    wide = X.replace("f32", "f64")
    relu = f"%y = onnx.Relu(%x) : ({wide}) -> {wide}"
    assert seconds(relu, argument=wide, result=wide) == 0.5 + 64


def test_where_an_operand_comes_from_may_matter() -> None:
    """The second Relu has figures of its own, with 2 bytes more than the cache holds."""
    twice = seconds(
        f"%a = onnx.Relu(%x) : ({X}) -> {X}", f"%y = onnx.Relu(%a) : ({X}) -> {X}"
    )
    assert twice == (2 + 32) + (3 + 32 + 2 * 10)


def test_views_take_time_where_they_were_measured() -> None:
    shape = "%s = onnx.Constant() {value = dense<[4]> : tensor<1xi64>} : () -> tensor<1xi64>"
    flat = "tensor<4xf32>"
    reshape = f"%y = onnx.Reshape(%x, %s) : ({X}, tensor<1xi64>) -> {flat}"
    assert seconds(shape, reshape, result=flat) == 7


@pytest.mark.parametrize(
    ("name", "expected"), [("all_reduce", 100 + 32), ("all_gather", 1 + 8)]
)
def test_kinds_of_communication(name: str, expected: float) -> None:
    """16 bytes: an all-reduce at half the bandwidth, an all-gather as the link says."""
    partial = name == "all_reduce"
    before = "partial sum {d}" if partial else "[{d}, {}]"
    source = f"tensor<2x2xf32, #dist.layout<@m, {before}>>"
    whole = "tensor<2x2xf32, #dist.layout<@m>>"
    text = (
        "device.mesh @m on @c <d = 2> [0, 1]\n"
        f"func.func @main(%x: {source}) -> {whole} {{\n"
        f"%y = collective.{name} %x over [d] : {source} -> {whole}\n"
        f"func.return %y : {whole}\n}}"
    )
    profiles = [Profile.parse("p", PROFILE)]
    for flat in (False, True):
        found = simulate(module(text), profiles=profiles, flat=flat)
        assert found.step_time_s == expected


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "overhead",
            -1,
            r"ops, f32, onnx.Relu.*overhead must be a finite number of at",
        ),
        (
            "per_byte",
            "fast",
            r"per_byte must be a finite number of at least 0, not 'fast'",
        ),
        ("per_bit", 1, r"has a field 'per_bit' that is not known"),
    ],
)
def test_bad_figures(field: str, value: Any, message: str) -> None:
    data = deepcopy(PROFILE)
    data["ops"]["f32"]["onnx.Relu"][field] = value
    with pytest.raises(DistIRError, match=message):
        Profile.parse("p", data)
