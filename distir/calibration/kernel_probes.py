"""
Users' kernels as programs to measure. Each kernel is measured alone, on its whole
arguments and on the parts that its rule allows, so that figures can be fitted to
several sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Region

from distir.calibration.probe import Probe
from distir.dialects.kernel import KernelDefOp, KernelResultOp
from distir.errors import DistIRError
from distir.interpreters.simulator.profiles.measured import kernel_name
from distir.sharding.kernel_parts import reference_part, rule_of
from distir.sharding.kernel_rule import parse_rule

LEAST = 3
"""The number of different sizes that a fit needs."""

_PARTS = (2, 4, 8, 16)


def kernel_probes(kernels: Sequence[KernelDefOp]) -> list[Probe]:
    """
    Returns the programs that measure `kernels`. Raises DistIRError for a kernel that
    can be measured at fewer than `LEAST` sizes, because its rule does not allow enough
    parts.
    """
    return [probe for kernel in kernels for probe in _probes(kernel)]


def _probes(kernel: KernelDefOp) -> list[Probe]:
    found = [_probe(part) for part in _sizes(kernel)]
    if len(found) < LEAST:
        raise DistIRError(
            f"kernel @{kernel.symbol} ({kernel.implementation.data}) can be measured at "
            f"{len(found)} sizes only, as its rule {kernel.rule.data!r} splits nothing into 2 "
            f"and 4 parts; at least {LEAST} sizes are needed: use a program with a larger "
            f"batch, or a rule that keeps less"
        )
    return found


def _sizes(kernel: KernelDefOp) -> Iterator[KernelDefOp]:
    """
    Yields copies of the kernel of different sizes: first the kernel with its whole
    reference, then the kernel with each part of the reference that the rule allows.
    """
    yield kernel.clone()
    rule, names = rule_of(kernel), parse_rule(kernel.rule.data)
    for factor, name in enumerate(names.names):
        for count in _PARTS:
            size = rule.factors[factor].size
            if name in names.kept or size % count or size == count:
                continue
            part = reference_part(kernel.reference.block, rule, {factor: count})
            assert not isinstance(part, str), part  # the rule was proved
            part.block.add_op(KernelResultOp.create(operands=list(part.results)))
            properties = dict(kernel.properties)
            yield KernelDefOp.create(
                properties=properties, regions=[Region(part.block)]
            )


def _probe(kernel: KernelDefOp) -> Probe:
    arguments = [str(arg.type) for arg in kernel.reference.block.args]
    results = [str(value.type) for value in kernel.result.values]
    names = [f"x{i}" for i in range(len(arguments))]
    made = [f"y{i}" for i in range(len(results))]
    given = {
        key: kernel.properties[key]
        for key in ("rule", "flops", "workspace")
        if key in kernel.properties
    }
    shown = ", ".join(f"{key} = {value}" for key, value in given.items())
    body = (
        f"{_listed(made)} = kernel.call @{kernel.symbol}({_listed(names)}) {{{shown}}} : "
        f"({', '.join(arguments)}) -> ({', '.join(results)})"
    )
    return Probe(
        kernel_name(kernel.symbol),
        dict(zip(names, arguments, strict=True)),
        [body],
        dict(zip(made, results, strict=True)),
        prologue=(str(kernel),),
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"%{name}" for name in names)
