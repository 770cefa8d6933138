"""Experts count at an expected load, and generated packages at the worst case."""

from __future__ import annotations

from math import ceil, inf, prod

import pytest
from support.cost_programs import cluster, parse
from support.expert_models import experts_step
from support.pipelines import distributed
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

import distir
from distir.dialects.collective_ops.over_axes import RaggedAllToAllOp
from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.experts import ExpertPlacesOp, GroupedOp, rows_of
from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.engine.compiled import (
    CommunicationStep,
    ComputationStep,
    OpStep,
)
from distir.program import functions
from distir.sharding.layout import local_shape
from distir.sharding.mesh import meshes
from distir.transforms.expert_shards import assume_imbalance


def assuming(module: ModuleOp, imbalance: float) -> ModuleOp:
    """A copy of a program that assumes this load of the busiest device."""
    module = module.clone()
    assume_imbalance(module, imbalance)
    return module


def steps_of(simulation: Simulation) -> list[OpStep]:
    """The compiled ops of a simulated program."""
    compiled = simulation.run.compiler.compiled_functions
    return [s for f in compiled for s in f.steps if isinstance(s, OpStep)]


def local_bytes(module: ModuleOp, value: SSAValue) -> int:
    """The bytes of a device's part of a value in 32 bits, with all of its places."""
    layout = layout_of(value)
    assert layout is not None
    return 4 * prod(local_shape(shape_of(value), layout, meshes(module)[layout.mesh]))


def test_buffers_are_as_long_as_the_rows_that_arrive() -> None:
    """
    4 experts on 4 devices, of which a token chooses 2: half of the places are taken in the
    mean. A device has exactly so many rows of its own tokens, and 1.5 times as many of the
    tokens of all if it is the busiest.
    """
    module = assuming(distributed(experts_step("mixtral"), e=4), 1.5)
    sent = [s for s in steps_of(simulate(module)) if isinstance(s.op, RaggedAllToAllOp)]
    assert len(sent) == 4  # two layers are one function; two forwards, two backwards
    for step in sent:
        (result,), op = step.results, step.op
        layout = layout_of(op.results[0])
        assert layout is not None and isinstance(step, CommunicationStep)
        share = 0.75 if layout.dim(0) else 0.5
        assert result.size == ceil(share * local_bytes(module, op.results[0]))
        before = local_bytes(module, op.operands[0])
        own = (0.5 if layout.dim(0) else 0.75) * before
        assert step.transfers[0].sent.tolist() == [[0.75 * ceil(own)]]


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        ("mixtral", "full"),
        pytest.param("gpt_oss", "none", marks=pytest.mark.slow),
    ],
)
def test_all_values_between_dispatch_and_combination_count_so(
    name: str, checkpoint: str
) -> None:
    """In the forward, in the backward, and where layers are functions."""
    module = distributed(experts_step(name), e=4, checkpoint=checkpoint)
    known = simulate(module).run.device_map.expert_rows
    (rows,) = {
        rows_of(op.rows)[::2] for op in module.walk() if isinstance(op, ExpertPlacesOp)
    }
    found = 0
    for function in functions(module).values():
        values = list(function.args)
        values += [r for op in function.body.block.ops for r in op.results]
        for value in values:
            shape = shape_of(value)
            if len(shape) == 4 and (shape[0], shape[2]) == rows and value.uses:
                inside = [u.operation.name for u in value.uses]
                if set(inside) <= {"func.call", "func.return"}:
                    continue  # made, and counted, in another function
                assert value in known, value
                found += 1
    assert found > 20


def test_a_larger_imbalance_takes_more_time_and_memory() -> None:
    """Up to that of the worst case, in which all tokens are on one device."""
    module = distributed(experts_step("qwen3_moe"), e=4)
    found = [simulate(assuming(module, load)) for load in (1, 1.5, 2.5, 4, 5, inf)]
    memory = [max(s.peak_memory_bytes) for s in found]
    seconds = [s.step_time_s for s in found]
    assert memory[:4] == sorted(set(memory)) and seconds[:4] == sorted(set(seconds))
    # A token chooses 2 of the 2 experts of each of 4 devices: a quarter of the places is taken.
    assert memory[3] == memory[4] == memory[5] and seconds[3] == seconds[5]
    assert simulate(module).step_time_s == simulate(assuming(module, 1.3)).step_time_s


def test_the_busiest_device_multiplies_more_rows() -> None:
    """The time of grouped products grows with the load; their FLOPs are those of the mean."""
    module = distributed(experts_step("mixtral"), e=4)
    on = cluster(16, levels=((16, 1e30, 0.0),))

    def products(load: float) -> list[ComputationStep]:
        steps = steps_of(simulate(assuming(module, load), on))
        return [
            s
            for s in steps
            if isinstance(s, ComputationStep) and isinstance(s.op, GroupedOp)
        ]

    for even, busy in zip(products(1), products(1.5), strict=True):
        assert busy.seconds == pytest.approx(1.5 * even.seconds)
        assert busy.flops == even.flops == even.seconds


@pytest.mark.slow
def test_with_a_capacity_all_places_count() -> None:
    """They are buffers of a fixed length, in other software too."""
    module = distributed(experts_step("qwen3_moe", 1.25), e=2)
    assert not any(op.imbalance for op in module.walk() if isinstance(op, GroupedOp))
    first, second = (simulate(assuming(module, load)) for load in (1, 3))
    assert first.to_json() == second.to_json()


@pytest.mark.slow
def test_one_device_has_all_tokens() -> None:
    """However uneven they are."""
    module = distributed(experts_step("mixtral"), d=2)
    first, second = (simulate(assuming(module, load)) for load in (1, 3))
    assert first.to_json() == second.to_json()


def test_the_assumption_is_in_the_program() -> None:
    """Before it is distributed, and after; infinite ones too."""
    step = assuming(experts_step("mixtral"), inf)
    module = distributed(step, e=4)
    assert {
        op.imbalance.value.data
        for op in parse(str(module)).walk()
        if isinstance(op, GroupedOp) and op.imbalance is not None
    } == {inf}
    by_default = distributed(experts_step("mixtral"), e=4)
    assert simulate(assuming(by_default, inf)).to_json() == simulate(module).to_json()


def test_numbers_below_1_are_refused() -> None:
    with pytest.raises(DistIRError, match=r"imbalance of 0\.5 cannot be"):
        assume_imbalance(experts_step("mixtral").clone(), 0.5)
    program = distir.build("mlp", layers=1, d_model=8, batch=8)
    with pytest.raises(DistIRError, match=r"'0\.9' is not a number of at least 1"):
        distir.simulate(program, cluster="cpu", expert_imbalance=0.9)


def test_tokens_of_few_groups_of_experts() -> None:
    """
    4 experts in 2 groups, of which a token chooses one: the limit of the router goes to
    all grouped products, with the number of a token's experts.
    """
    module = experts_step("mixtral")
    for op in module.walk():
        if isinstance(op, ExpertPlacesOp):
            op.properties["group_limit"] = DenseArrayBase.from_list(i64, [2, 1])
    module.verify()
    limits = [
        op.group_limit
        for op in distributed(module, e=4).walk()
        if isinstance(op, GroupedOp)
    ]
    assert limits
    assert all(limit and limit.get_values() == (2, 1, 2) for limit in limits)


@pytest.mark.parametrize("sizes", [[3, 1], [2, 3], [2, 0], [2]])
def test_impossible_groups_of_experts(sizes: list[int]) -> None:
    module = experts_step("mixtral")
    (op, *_) = (op for op in module.walk() if isinstance(op, ExpertPlacesOp))
    op.properties["group_limit"] = DenseArrayBase.from_list(i64, sizes)
    with pytest.raises(VerifyException, match="expected a number of groups that"):
        module.verify()
