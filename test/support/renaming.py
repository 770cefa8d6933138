"""Renames programs, and removes names from their text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, SSAValue

from distir.dialects.dist_attributes import NAME, NOTES, OF, SCOPE, UPDATES
from distir.gradients.call_pairs import FORWARD
from distir.program import functions

LABELS = (NAME, UPDATES, OF)
"""The attributes that hold labels, which must stay consistent with each other."""

WORDS = ("loss", "gradient", "labels", "input", "optimizer.step", "layers.0", "weight")
ENDINGS = ("gradient", "master", "exp_avg", "momentum", "weight", "0", "step")


def renamed(module: ModuleOp, seed: int) -> ModuleOp:
    """
    Returns a copy with other names of values, arguments and results, and other scopes:
    misleading ones, such as `w.gradient` for an input. Labels are renamed consistently.
    """
    draw = random.Random(seed)
    copy = module.clone()
    old = list(dict.fromkeys(_labels(copy)))
    made = (f"{n}.{e}" for n in (*old, "y") for e in ENDINGS)
    pool = list(dict.fromkeys((*old, *WORDS, *made)))
    new = dict(zip(old, draw.sample(pool, len(old)), strict=True))
    _relabel(copy, new)
    for op in copy.walk():
        if SCOPE in op.attributes or draw.random() < 0.3:
            depth = draw.randrange(1, 4)
            parts = [draw.choice((*WORDS, "h", "*", "1")) for _ in range(depth)]
            op.attributes[SCOPE] = StringAttr(".".join(parts))
    for value in _values(copy):
        value.name_hint = f"{draw.choice(pool)}_".replace("*", "x").lstrip("0123456789")
    return copy


def anonymous(module: ModuleOp) -> str:
    """
    Returns the text of a program without names of values and scopes, with functions and
    labels numbered: what must not depend on names.
    """
    copy = module.clone()
    for function in list(functions(copy).values())[1:]:  # labels of their callers
        function.properties.pop("arg_attrs", None)
    labels = dict.fromkeys(_labels(copy))
    _relabel(copy, {label: f"n{i}" for i, label in enumerate(labels)})
    copy.attributes.pop(NOTES, None)
    numbers = {name: f"f{i}" for i, name in enumerate(functions(copy))}
    for op in copy.walk():
        op.attributes.pop(SCOPE, None)
        if isinstance(op, CallOp):
            op.properties["callee"] = SymbolRefAttr(numbers[op.callee.string_value()])
    for name, function in functions(copy).items():
        function.properties["sym_name"] = StringAttr(numbers[name])
        forward = function.attributes.get(FORWARD)
        if isinstance(forward, SymbolRefAttr):
            known = numbers.get(forward.string_value(), "gone")
            function.attributes[FORWARD] = SymbolRefAttr(known)
    for value in _values(copy):
        value.name_hint = None
    return str(copy)


def _values(module: ModuleOp) -> Iterator[SSAValue]:
    for op in module.walk():
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.args


def _labels(module: ModuleOp) -> Iterator[str]:
    for function in functions(module).values():
        for owner in itertools.chain(
            function.arg_attrs or (), function.res_attrs or ()
        ):
            for attribute in LABELS:
                label = owner.data.get(attribute)
                if isinstance(label, StringAttr):
                    yield label.data


def _relabel(module: ModuleOp, names: Mapping[str, str]) -> None:
    def own(owner: DictionaryAttr) -> DictionaryAttr:
        attributes: dict[str, Attribute] = dict(owner.data)
        for attribute in LABELS:
            label = attributes.get(attribute)
            if isinstance(label, StringAttr):
                attributes[attribute] = StringAttr(names.get(label.data, label.data))
        return DictionaryAttr(attributes)

    for function in functions(module).values():
        if function.arg_attrs is not None:
            function.arg_attrs = ArrayAttr([own(d) for d in function.arg_attrs])
        if function.res_attrs is not None:
            function.res_attrs = ArrayAttr([own(d) for d in function.res_attrs])
