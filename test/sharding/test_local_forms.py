"""Local forms are needed, and keep what other tools rely on."""

from __future__ import annotations

import numpy as np
import pytest
from support.sharding_cases import CASES
from support.sharding_harness import Case, build, sequential, typed
from xdsl.dialects.builtin import StringAttr

from distir.dialects.dist import Layout, Shard, with_layout
from distir.dialects.onnx_ops.op import OnnxOp
from distir.sharding.local import local_form, local_ops
from distir.testing.runs import run_split
from distir.testing.splits import assignments, mesh


def _forms() -> list[str]:
    return sorted(n for n in local_form.entries if n.startswith("onnx."))


@pytest.mark.parametrize("name", _forms())
def test_without_its_local_form_an_op_goes_wrong(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """Also proves that the tests of the rules notice wrong numbers."""
    monkeypatch.delitem(local_form.entries, name)
    on = mesh(a=2, b=2)
    for case in CASES:
        if f"onnx.{case.name}" != name:
            continue
        plain = sequential(case)
        for assignment in assignments(plain.rule, on):
            try:
                run_split(plain, on, assignment)
            except Exception:
                return
    pytest.fail(f"every case of {name} passes without its local form")


def test_local_ops_keep_the_scope():
    on = mesh(t=2)
    table, indices = np.zeros((6, 4), np.float32), np.array([1, 5])
    case = Case("Gather", [table, indices])
    layouts = [Layout("m", ((Shard("t"),), ())), Layout("m")]
    out = np.zeros((2, 4), np.float32)
    result = with_layout(typed(out), Layout("m", (), (("t", "sum"),)))
    op, _ = build(case, layouts, [result])
    op.attributes["scope"] = StringAttr("transformer.wte")
    ops = local_ops(op, op.operands, {"m": on}, {"t": 1})
    assert {o.attributes.get("scope") for o in ops} == {StringAttr("transformer.wte")}
    (coordinate,) = [o for o in ops if o.name == "collective.coordinate"]
    assert coordinate.index.value.data == 1  # pyright: ignore


def test_sequential_ops_stay_themselves():
    plain = sequential(CASES[0])
    (op,) = local_ops(plain.op, plain.op.operands, {}, {})
    assert op.name == plain.op.name
    assert list(op.operands) == list(plain.op.operands)
    assert op.properties == plain.op.properties
    assert op.result_types == plain.op.result_types


def test_a_direction_has_its_own_activations():
    """Each device of a split bidirectional layer goes one way, with that way's functions."""
    on = mesh(t=2)
    x, w, r = (np.zeros(n, np.float32) for n in ((3, 2, 4), (2, 2, 4), (2, 2, 2)))
    how = {"hidden_size": 2, "direction": "bidirectional"}
    case = Case("RNN", [x, w, r], how | {"activations": ["Tanh", "Relu"]})
    split = Layout("m", ((Shard("t"),), (), ()))
    out = np.zeros((3, 2, 2, 2), np.float32)
    result = with_layout(typed(out), Layout("m", ((), (Shard("t"),), (), ())))
    op, _ = build(case, [Layout("m"), split, split], [result])
    found = [local_ops(op, op.operands, {"m": on}, {"t": i})[0] for i in (0, 1)]
    assert [
        (o.attribute("direction"), o.attribute("activations"))
        for o in found
        if isinstance(o, OnnxOp)
    ] == [("forward", ["Tanh"]), ("reverse", ["Relu"])]
