"""Fills a parallel module with the parameters, buffers and states of its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from distir.errors import DistIRError
from distir.frontends.torch.modules.meta import has_no_value
from distir.parallel.merged import joined, make_views, merged_parts
from distir.parallel.pretrained.stored import StoredWeight
from distir.parallel.rank_program import RankProgram
from distir.parallel.scripts.part_modules import ModulePart, add_parts
from distir.parallel.weights import names_of, values_of_rank_0

STATES = "distir"
"""
The name of the submodule with the states that only the program has, such as the counter
of dropout.
"""


def fill(
    module: nn.Module,
    source: nn.Module,
    program: RankProgram,
    seed: int,
    weights: Mapping[str, StoredWeight],
) -> dict[str, torch.Tensor]:
    """
    Adds this rank's parts of the parameters and buffers of `source` to `module`, under
    their names. The values come from `weights`, which has them by first name, or else
    from `source`. Returns, by name, the program's arguments that the module does not
    hold as parameters or buffers.

    States that only the program has go to the submodule `STATES`. Parameters that a
    schedule merged into one argument become views of that argument. Programs take
    complex numbers as pairs of real numbers, so a complex buffer becomes a view of its
    pairs. Parameters without values are drawn from `seed`. Raises DistIRError if a
    buffer that the program needs has no value.
    """
    add_parts(module, source)
    names = names_of(source)
    first = {name: f for f, all_names in names.items() for name in all_names}

    def known(spec: Any) -> str:
        """
        Returns the source module's first name for the argument `spec`, or for a part of
        a merged argument.
        """
        return first.get(spec.name, str(spec.name))

    own = {known(s): s for s in program.arguments.values()}
    used = {known(s) for s in program.all_arguments}
    for spec in program.all_arguments:
        if spec.repacked:
            used |= {known(part) for part in spec.parts()}
    _check_buffers(source, program, used - weights.keys())
    merged = {n: s for n, s in own.items() if s.repacked and s.role == "parameter"}
    apart = {known(p) for s in merged.values() for p in s.parts()}
    whole: dict[str, Callable[[], torch.Tensor]] = {}
    values: dict[str, torch.Tensor] = {}
    others: dict[str, torch.Tensor] = {}
    parameters = dict(source.named_parameters())

    def take(name: str, value: torch.Tensor) -> None:
        if name in own and value.is_complex():
            spec = own[name]
            part = program.part(spec, torch.view_as_real(value.resolve_conj()))
            others[spec.name] = program.held(spec, part)
            values[name] = program.complex_held(spec, part, value)
        elif name in own:
            values[name] = program.held(own[name], program.part(own[name], value))
        elif name in apart:
            whole[name] = lambda: value
        elif name not in used:  # no op reads it
            value = value.to(program.device).clone()
            values[name] = program.replicated(value) if name in parameters else value

    kinds = {n: t.dtype for n, t in (*parameters.items(), *source.named_buffers())}
    for name, stored in weights.items():
        if name in own and not kinds[name].is_complex:
            values[name] = _read(program, own[name], stored)
        elif name in apart:
            whole[name] = lambda s=stored, n=name: s.whole().to(kinds[n])
        elif name in own or name not in used:
            take(name, stored.whole().to(kinds[name]))
    for name, value in values_of_rank_0(source, weights.keys()):
        take(name, value)
    for spec in merged.values():
        if all(known(p) in whole for p in spec.parts()):
            made = joined(spec, lambda p: whole[known(p)]())
            local = program.part(spec, made).to(program.device)
        else:
            local = program.initial(spec, seed)
        others[spec.name] = program.held(spec, local)
        for part, view in merged_parts(program, spec, local):
            values[known(part)] = program.held(part, view.clone())
    for name, parameter in parameters.items():
        if name in values:
            pass
        elif has_no_value(parameter) and name in own:
            values[name] = program.held(own[name], program.initial(own[name], seed))
        elif has_no_value(parameter) and name not in used:
            values[name] = program.replicated(program.unread(name, parameter, seed))
        if name in values:
            parameter = nn.Parameter(values[name], parameter.requires_grad)
            for each in names[name]:
                folder, last = _place(module, each)
                folder.register_parameter(last, parameter)
    kept = source.state_dict(keep_vars=True)
    for name, _ in source.named_buffers():
        if name in values:
            folder, last = _place(module, name)
            folder.register_buffer(last, values[name], persistent=name in kept)
    for name, spec in own.items():
        if spec.role == "state" and name not in values:
            folder, last = _place(module, f"{STATES}.{spec.name}")
            folder.register_buffer(last, program.other(spec))
        elif spec.role == "constant" and name not in values:
            others[spec.name] = program.other(spec)
    make_views(module, program, others)
    return others


def _read(program: RankProgram, spec: Any, stored: StoredWeight) -> torch.Tensor:
    """Reads only this rank's part of a stored tensor, and returns it."""
    part = stored.part(spec, program.specs.get(spec.mesh), program.rank)
    return program.held(spec, part.to(program.device, spec.dtype))


def _check_buffers(source: nn.Module, program: RankProgram, used: set[str]) -> None:
    for name, buffer in source.named_buffers():
        if has_no_value(buffer) and name in used and name not in program.constants:
            raise DistIRError(
                f"parallelize: buffer {name!r} has no value, as on the meta "
                f"device, and nothing tells which; make the module's buffers on the CPU"
            )


def _place(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    """
    Returns the submodule of `root` that holds the tensor with the dotted `name`, and
    the last part of the name. Makes submodules that do not exist.
    """
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:  # pyright: ignore[reportPrivateUsage]
            root.add_module(part, ModulePart())
        root = root.get_submodule(part)
    return root, last
