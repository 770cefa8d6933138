"""Overlapped programs compute the same, are never slower, and have one order for all ranks."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from support.cost_programs import MACHINES, STRATEGIES, cluster, distributed, verified
from support.pipelines import arguments_of, assert_equal_results
from support.thoroughness import sampled
from support.torch_training import training_step
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import AllGatherOp, ReduceScatterOp
from distir.dialects.dist import SendOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.dialects.train_ops.float8 import Float8ProductOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.hardware import load_cluster
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.expand_float8 import ExpandFloat8Pass
from distir.passes.float8 import Float8Pass
from distir.passes.overlap_communication import OverlapCommunicationPass
from distir.planning.annotations import read_notes
from distir.planning.plans.programs import replace_cluster
from distir.program import entry_function, functions, reachable_functions
from distir.transforms.overlap.kinds import KINDS, erase_kinds, write_kinds
from distir.transforms.overlap.place import place_functions
from distir.transforms.projection import devices_of, project

MORE = [
    {"d": 4, "zero": 3},
    {"d": 2, "t": 2, "zero": 3, "sequence_parallel": True},
    {"d": 2, "p": 2, "k": 2, "zero": 3},
    {"d": 2, "p": 2, "k": 2, "schedule": "zb-h1"},
]


def overlapped(module: ModuleOp, **options: Any) -> ModuleOp:
    """A verified copy after the pass."""
    return verified(module, OverlapCommunicationPass(**options))


@functools.cache
def step() -> ModuleOp:
    return training_gpt()


STEPS: list[dict[str, Any]] = [*STRATEGIES, *MORE]


@functools.cache
def pair(number: int) -> tuple[ModuleOp, ModuleOp]:
    """A distributed training step, and the same after the pass."""
    before = distributed(step(), MACHINES, **STEPS[number])
    return before, overlapped(before)


@pytest.mark.parametrize("number", sampled(range(len(STEPS)), 8))
def test_never_slower(number: int) -> None:
    module, faster = pair(number)
    before, after = simulate(module), simulate(faster)
    assert after.step_time_s <= before.step_time_s
    assert after.fits
    assert sorted(after.communication_bytes) == sorted(before.communication_bytes)
    if STEPS[number].get("d", 1) > 1:
        assert after.step_time_s < before.step_time_s
        assert after.exposed_communication < before.exposed_communication


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlp_deep", "gpt2_deep", "unet_deep", "encoder_decoder_deep"]
)
@pytest.mark.parametrize(
    "options", [{"d": 2}, {"d": 2, "t": 2, "zero": 3}, MORE[2]], ids=str
)
def test_imported_models_are_never_slower(name: str, options: dict[str, Any]) -> None:
    module = training_step(name).module.clone()
    replace_cluster(module, MACHINES.clone())
    DistributePass(**options).apply(Context(), module)
    before, after = simulate(module), simulate(overlapped(module))
    assert after.step_time_s < before.step_time_s


def test_inference_is_never_slower() -> None:
    module = build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=4, seq=8)
    for options in ({"t": 2}, {"d": 2, "t": 2}, {"p": 2, "k": 2}):
        program = distributed(module, MACHINES, **options)
        assert (
            simulate(overlapped(program)).step_time_s <= simulate(program).step_time_s
        )


CHECKED = range(len(STRATEGIES), len(STEPS))


@pytest.mark.parametrize("number", sampled(CHECKED, 4))
def test_results_stay(number: int) -> None:
    module, faster = pair(number)
    arguments = arguments_of(module)
    expected = run_program(module, arguments)
    actual = run_program(faster, arguments)
    assert_equal_results(module, expected, actual, 1e-6)


Order = dict[tuple[int, ...], list[str]]


def order_of(module: ModuleOp, name: str, found: Order) -> Order:
    """The collectives of a rank's program in their order, by group."""
    for op in functions(module)[name].body.block.ops:
        if isinstance(op, CallOp):
            order_of(module, op.callee.string_value(), found)
        elif isinstance(op, CollectiveOp) and op.CAN_BE_ASYNCHRONOUS:
            assert op.ranks is not None
            what = f"{op.name} {op.source.type} {op.result.type}"
            found.setdefault(op.ranks, []).append(what)
    return found


@pytest.mark.parametrize("number", sampled(CHECKED, 4))
def test_all_ranks_of_a_group_have_one_order(number: int) -> None:
    _, module = pair(number)
    orders: Order = {}
    for rank in devices_of(module):
        program = project(module, rank)
        program.verify()
        name = entry_function(program).sym_name.data
        for group, order in order_of(program, name, {}).items():
            assert rank in group
            assert orders.setdefault(group, order) == order
    assert any(len(group) > 1 for group in orders)


def test_the_last_micro_batch_reduces_in_the_backward() -> None:
    """A function of its own for that call, which reduces what the calls before added up."""
    module = overlapped(distributed(training_mlp(), MACHINES, d=2, p=2, k=4))
    names = list(functions(module))
    assert "stage0_backward_accumulate" in names
    assert "stage0_backward_accumulate_and_reduce" in names
    calls = [op.callee.string_value() for op in module.walk() if isinstance(op, CallOp)]
    assert calls.count("stage0_backward_accumulate_and_reduce") == 1


def test_the_note_says_what_it_gains_and_costs() -> None:
    _, faster = pair(STEPS.index(MORE[0]))
    result = simulate(faster)
    (note,) = [n for n in read_notes(faster) if "overlap" in n]
    assert f"step time {result.step_time_s:.4g} s" in note
    assert f"peak memory {max(result.peak_memory_bytes)} B" in note
    lonely = overlapped(distributed(training_mlp(), MACHINES))
    assert read_notes(lonely) == [
        "overlap-communication: nothing gained; left as it is"
    ]


def test_memory_decides_nothing_where_nothing_fits() -> None:
    """
    A program that fits is not exchanged for one that does not. One that does not fit
    without overlap either is overlapped.
    """
    levels = ((4, 1e9, 1e-6),)
    options: dict[str, Any] = dict(peak=1e9, bandwidth=1e11, launch=1e-8)
    large = cluster(4, levels=levels, memory=10**9, **options)
    module = distributed(step(), large, d=4, zero=3)
    before, after = (simulate(each) for each in (module, overlapped(module)))
    peak = max(before.peak_memory_bytes)
    assert after.step_time_s < before.step_time_s
    assert max(after.peak_memory_bytes) > peak
    for memory, is_faster in ((peak, False), (peak // 2, True)):
        small = module.clone()
        replace_cluster(small, cluster(4, levels=levels, memory=memory, **options))
        found = overlapped(small)
        assert simulate(small).fits is not is_faster
        same = max(simulate(found).peak_memory_bytes) == max(after.peak_memory_bytes)
        assert same == is_faster


def test_bad_options() -> None:
    module = distributed(training_mlp(), MACHINES, d=2)
    with pytest.raises(DistIRError, match="choose 1 or more"):
        overlapped(module, ahead=0)
    with pytest.raises(DistIRError, match="cannot overlap"):
        distributed(
            training_mlp(), MACHINES, p=2, k=2, overlap=True, blocking_sends=True
        )


@functools.cache
def sequence_parallel_step() -> ModuleOp:
    """A step of a GPT of two layers on 2 x 4 A100s, its sequences split."""
    sequential = build_gpt(2, 2048, 16, 8192, 8, 1024, dtype="bf16")
    DifferentiatePass().apply(Context(), sequential)
    replace_cluster(sequential, load_cluster("dgx-a100", 8))
    options: dict[str, Any] = {"d": 2, "t": 4, "sequence_parallel": True, "zero": 3}
    DistributePass(**options).apply(Context(), sequential)
    return sequential


def started(module: ModuleOp) -> set[tuple[str, tuple[str, ...]]]:
    """The names and axes of the collectives that are asynchronous."""
    return {
        (op.name.removeprefix("collective."), op.axis_names)
        for op in module.walk()
        if isinstance(op, CollectiveOp) and op.is_asynchronous
    }


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("dp",), {("reduce_scatter", ("d",))}),
        (("params",), {("all_gather", ("d",))}),
        (("tp",), {("all_gather", ("t",)), ("reduce_scatter", ("t",))}),
    ],
)
def test_kinds_of_communication(
    kinds: tuple[str, ...], expected: set[tuple[str, tuple[str, ...]]]
) -> None:
    module = sequence_parallel_step()
    faster = verified(module, OverlapCommunicationPass(kinds=kinds))
    found = started(faster)
    assert found >= expected
    # Gradients of what is whole over t are reduced over it, too.
    assert found - expected <= {("all_reduce", ("t",)), ("all_reduce", ("d",))}
    assert simulate(faster).step_time_s < simulate(module).step_time_s


def test_sends_alone() -> None:
    module = distributed(training_gpt(), MACHINES, d=2, p=2, k=2, blocking_sends=True)
    faster = verified(module, OverlapCommunicationPass(kinds=("pp",)))
    sends = [op for op in faster.walk() if isinstance(op, SendOp)]
    assert sends and all(ASYNCHRONOUS in op.attributes for op in sends)
    assert not started(faster)


def test_sequence_parallelism_hides_a_part() -> None:
    """What a backward gathers again, and reduces and scatters, runs beside contractions."""
    module = sequence_parallel_step()
    before = simulate(module)
    after = simulate(verified(module, OverlapCommunicationPass(kinds=("tp",))))
    (few,), (many,) = set(after.communication_s), set(before.communication_s)
    assert few < 0.85 * many
    assert after.peak_memory_bytes[0] < 1.05 * before.peak_memory_bytes[0]


def test_it_judges_with_the_profile() -> None:
    module = sequence_parallel_step().clone()
    faster = verified(module, OverlapCommunicationPass(profile=("A100",)))
    took, note = simulate(faster, profiles=["A100"]).step_time_s, read_notes(faster)[-1]
    assert f"step time {took:.4g} s instead of" in note
    assert took < simulate(module, profiles=["A100"]).step_time_s


def test_buckets_are_formed_anew() -> None:
    """A program that has buckets has buckets afterwards, and is as fast as can be."""
    module = sequence_parallel_step()
    faster = verified(module, OverlapCommunicationPass())
    assert any(
        isinstance(op, CollectiveOp) and op.is_joined and op.is_asynchronous
        for op in faster.walk()
    )


def test_unknown_kinds() -> None:
    module = sequence_parallel_step().clone()
    with pytest.raises(DistIRError, match="no kind of communication 'ddp'; choose one"):
        OverlapCommunicationPass(kinds=("ddp",)).apply(Context(), module)
    with pytest.raises(DistIRError, match="overlapped says which communication"):
        DistributePass(d=2, overlapped=("dp",)).apply(Context(), training_gpt())


@pytest.mark.parametrize(
    "options",
    sampled([{"d": 2, "t": 2}, {"t": 4}, {"t": 2, "p": 2, "k": 2}], 3),
)
def test_products_in_pieces(options: dict[str, int]) -> None:
    """
    Products whose terms are added up over "t" are computed in pieces of their tokens where
    that is faster; all numbers stay, and so do the bytes that are sent.
    """
    on = cluster(
        4, levels=((4, 1e9, 1e-8),), peak=1e9, bandwidth=1e11, launch=1e-8, memory=10**9
    )
    module = distributed(step(), on, buckets=False, **options)
    whole = overlapped(module, kinds=("dp", "pp", "params"))
    found = overlapped(module, kinds=KINDS)
    assert str(found).count("onnx.Split") > str(whole).count("onnx.Split")
    before, after = simulate(whole), simulate(found)
    assert after.step_time_s < before.step_time_s
    assert after.exposed_communication < before.exposed_communication
    assert after.communication_bytes == before.communication_bytes
    arguments = arguments_of(module)
    expected, actual = (run_program(each, arguments) for each in (module, found))
    assert_equal_results(module, expected, actual, 1e-5)


@pytest.mark.parametrize("scaling, has_pieces", [("tensor", True), ("row", False)])
def test_products_in_8_bits_in_pieces(scaling: str, has_pieces: bool) -> None:
    """One scale holds for all pieces of a tensor. Scales of rows are not cut."""
    module = build_gpt(layers=1, d_model=32, heads=4, vocab=64, batch=4, seq=8)
    for each in (Float8Pass(scaling), DifferentiatePass(), ExpandFloat8Pass()):
        each.apply(Context(), module)
    on = cluster(
        2, levels=((2, 1e9, 1e-8),), peak=1e9, bandwidth=1e11, launch=1e-8, memory=10**9
    )
    module = distributed(module, on, buckets=False, t=2)
    found = overlapped(module)
    pieces = [op for op in found.walk() if isinstance(op, Float8ProductOp)]
    whole = [op for op in module.walk() if isinstance(op, Float8ProductOp)]
    assert (len(pieces) > len(whole)) == has_pieces
    arguments = arguments_of(module)
    expected, actual = (run_program(each, arguments) for each in (module, found))
    assert_equal_results(module, expected, actual, 1e-5)


@pytest.mark.parametrize(
    "options", sampled([{"d": 2, "t": 2}, {"t": 2}, {"t": 2, "p": 2, "k": 2}], 3)
)
def test_gathered_rows_in_pieces(options: dict[str, int]) -> None:
    """
    Under sequence parallelism, rows are gathered in pieces beside the products of other pieces,
    also where "d" splits the batch; all numbers stay, and so do the bytes that are sent.
    """
    on = cluster(
        4, levels=((4, 2e8, 1e-8),), peak=1e9, bandwidth=1e11, launch=1e-8, memory=10**9
    )
    module = distributed(step(), on, buckets=False, sequence_parallel=True, **options)
    whole = overlapped(module, kinds=("dp", "pp", "params"))
    found = overlapped(module, kinds=KINDS)

    def gathers(program: ModuleOp) -> int:
        return sum(isinstance(op, AllGatherOp) for op in program.walk())

    assert gathers(found) > gathers(whole)
    before, after = simulate(whole), simulate(found)
    assert after.step_time_s < before.step_time_s
    assert after.communication_bytes == before.communication_bytes
    arguments = arguments_of(module)
    expected, actual = (run_program(each, arguments) for each in (module, found))
    assert_equal_results(module, expected, actual, 1e-5)


def test_gathers_and_reductions_of_8_bits_beside_products() -> None:
    """
    With sequence parallelism, rows in 8 bits are gathered beside the product in front of
    their own, and gradients are scattered beside products for gradients of weights: each of
    these products follows its layer's, though it waits for a scale.
    """
    module = build_gpt(layers=1, d_model=64, heads=4, vocab=64, batch=2, seq=16)
    for each in (Float8Pass("tensor"), DifferentiatePass(), ExpandFloat8Pass()):
        each.apply(Context(), module)
    on = cluster(
        2, levels=((2, 1e9, 1e-8),), peak=1e9, bandwidth=1e11, launch=1e-8, memory=10**9
    )
    module = distributed(module, on, buckets=False, t=2, sequence_parallel=True)
    found = module.clone()
    write_kinds(found)
    place_functions(reachable_functions(found), 1, KINDS)
    erase_kinds(found)
    assert simulate(found).step_time_s < simulate(module).step_time_s
    beside = {AllGatherOp.name: 0, ReduceScatterOp.name: 0}
    for function in functions(found).values():
        place = {op: i for i, op in enumerate(function.body.block.ops)}
        products = [i for op, i in place.items() if isinstance(op, Float8ProductOp)]
        for op, start in place.items():
            if op.name in beside and ASYNCHRONOUS in op.attributes:
                end = min(place[use.operation] for use in op.results[0].uses)
                beside[op.name] += any(start < i < end for i in products)
    # Without such a place, products that wait for a scale came last, beside no gather.
    assert beside == {AllGatherOp.name: 3, ReduceScatterOp.name: 1}
    arguments = arguments_of(module)
    expected, actual = (run_program(each, arguments) for each in (module, found))
    assert_equal_results(module, expected, actual, 1e-5)
