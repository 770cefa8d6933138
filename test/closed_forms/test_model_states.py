"""
Bytes of parameters, gradients and optimizer states that a training step holds on each
device, by simulation, against closed forms: Z1 (ZeRO, Rajbhandari et al. 2020, Figure 1)
and Z3 (Megatron-LM's distributed optimizer).

What some matrices in the middle of a chain add to the peak is what their parameters
hold: activations and the loss are the same for both chains, and so is what is there for
one matrix at a time (a whole gradient, a gathered parameter).
"""

from __future__ import annotations

import pytest
from closed_forms.chains import chain
from closed_forms.towers import distributed, on_each_device, peak_memory
from support.thoroughness import sampled

from distir.transforms.partitioning import Partitioner

WIDE, NARROW = 46875, 40000
"""Four matrices of these have 7.5e9 elements, which 64 devices divide evenly."""


def held(
    d: int,
    zero: int,
    batch: int = 64,
    k: int = 1,
    wide: int = WIDE,
    **options: object,
) -> float:
    """Bytes that 4 matrices of 40000 by `wide` hold on each of d devices."""
    few, more = (
        on_each_device(
            peak_memory,
            distributed(
                chain([NARROW, wide] * pairs + [NARROW], batch, **options),
                d=d,
                zero=zero,
                k=k,
            ),
        )
        for pairs in (2, 4)
    )
    return more - few


@pytest.mark.parametrize(
    ("d", "zero", "expected"),
    [
        (1, 0, 120_000_000_000),
        (64, 0, 120_000_000_000),
        (64, 1, 31_406_250_000),
        (64, 2, 16_640_625_000),
        (64, 3, 1_875_000_000),
    ],
)
def test_z1_model_state_bytes(d: int, zero: int, expected: int) -> None:
    """
    Parameters and gradients of 2 bytes, 12 of AdamW with an f32 copy: 16 P; ZeRO 1:
    4 P + 12 P / N; 2: 2 P + 14 P / N; 3: 16 P / N. P = 7.5e9, N = 64.
    """
    parameters = 7_500_000_000
    whole, split = {0: (16, 0), 1: (4, 12), 2: (2, 14), 3: (0, 16)}[zero]
    assert expected == whole * parameters + split * parameters // d
    assert held(d, zero) == expected


@pytest.mark.parametrize(
    ("zero", "options"), [(1, {}), (2, {}), (3, {}), (2, {"clip": 1})]
)
@pytest.mark.parametrize("k", sampled([2, 4], 2))
def test_z1_holds_with_micro_batches(
    zero: int, k: int, options: dict[str, object]
) -> None:
    """
    The same when gradients accumulate, beside the activations of a micro-batch, here one
    sample a device: in stages 2 and 3 the parts of gradients add up, clipped or not.
    """
    parameters, d = 7_500_000_000, 64
    whole, split = {1: (4, 12), 2: (2, 14), 3: (0, 16)}[zero]
    activations = 2 * 2 * (WIDE + NARROW)
    states = whole * parameters + split * parameters // d
    assert held(d, zero, batch=d * k, k=k, **options) == states + activations


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_model_states_on_a_number_of_devices_that_divides_nothing(zero: int) -> None:
    """The same on 7 devices, up to the zeros behind the four flat matrices."""
    parameters, d = 7_500_000_000, 7
    whole, split = {1: (4, 12), 2: (2, 14), 3: (0, 16)}[zero]
    exact = whole * parameters + split * parameters / d
    assert exact <= held(d, zero, batch=d) < exact + 4 * split


@pytest.mark.parametrize(("d", "each"), [(1, 18), (2, 12), (8, 7.5), (64, 6.1875)])
def test_z3_distributed_optimizer_bytes(d: int, each: float) -> None:
    """
    Parameters in bf16, gradients in f32, neither split, AdamW's 12 bytes split:
    6 + 12 / d bytes a parameter.
    """
    assert each == 6 + 12 / d
    zero = 1 if d > 1 else 0
    assert held(d, zero, gradient_dtype="f32") == each * 7_500_000_000


@pytest.mark.parametrize("matrices", [3, 6])
def test_gathered_parameters_live_no_longer_than_their_use(
    matrices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    ZeRO 3 on 4 devices, matrices of 128 x 128 on 8 samples. The step's peak is where the
    last gradient is scattered: what lasts, and by then no gathered parameter. It would be
    higher if those of the forward were kept for the backward: then it is where the first
    gradient is scattered, beside every matrix but the first, which the backward does not
    need, and the last, which it has used.
    """
    d, activation, whole = 4, 2 * 128 * 8 // 4, 2 * 128 * 128
    program = chain([128] * (matrices + 1), 8)
    module = distributed(program, d=d, zero=3, buckets=False)
    state = matrices * (2 + 12) * 128 * 128 // d + 8
    constants = 2 * 8 + 3 * 4 + 8
    loss = 4
    # The input, and labels in f32: the loss of 16-bit values is computed in 32 bits.
    lasting = state + activation + 2 * activation + constants + loss
    gradients = matrices * whole // d
    expected = lasting + gradients + whole
    assert on_each_device(peak_memory, module) == expected

    def share(self: object, value: object) -> bool:
        return False

    monkeypatch.setattr(Partitioner, "_is_gathered_for_each_use", share)
    program = chain([128] * (matrices + 1), 8)
    module = distributed(program, d=d, zero=3, buckets=False)
    kept = (matrices - 2) * (whole + activation)
    first_gradient = activation + whole + whole // d
    assert on_each_device(peak_memory, module) == lasting + kept + first_gradient


BLOCKS = 48000
"""A size that blocks of 64 elements divide, as they divide 40000."""


@pytest.mark.parametrize("zero", sampled([0, 1, 3], 3))
@pytest.mark.parametrize(
    ("optimizer", "state_dtype", "each"),
    [
        ("adamw", "bf16", 2 + 2),
        ("adamw", "int8", 2 * (1 + 4 / 64)),
        ("lion", "parameter", 4),
        ("lion", "int8", 1 + 4 / 64),
        ("lamb", "parameter", 8),
        ("muon", "parameter", 4),
        ("muon", "bf16", 2),
        ("adafactor", "parameter", 4 * (1 / NARROW + 1 / BLOCKS)),
    ],
)
def test_z1_states_of_other_optimizers(
    optimizer: str, state_dtype: str, each: float, zero: int
) -> None:
    """
    Parameters and gradients of 2 bytes and an f32 copy, with states of `each` bytes for
    a parameter: 8 bits are a code for each element, and 4 bytes for each block of 64.
    """
    parameters, d = 4 * NARROW * BLOCKS, 1 if zero == 0 else 64
    whole, split = {0: (4, 4 + each), 1: (4, 4 + each), 3: (0, 8 + each)}[zero]
    if optimizer == "adafactor" and zero == 1:  # sums are taken of scattered gradients
        whole, split = 2, 6 + each
    found = held(d, zero, wide=BLOCKS, optimizer=optimizer, state_dtype=state_dtype)
    expected = whole * parameters + split * parameters / d
    assert found == pytest.approx(expected, rel=1e-6)
