"""Reads the collectives of a compiled function from its HLO text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError

Groups = tuple[tuple[int, ...], ...]
"""Groups of devices, each with the positions of its devices."""

KINDS: Mapping[str, str] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "shift",
    "collective-broadcast": "broadcast",
}
"""The name of a collective in DistIR by its opcode in HLO."""

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
_CALLED = re.compile(
    r"\b(?:body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_ROUNDS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_NAME = re.compile(r'op_name="([^"]*)"')
_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
_COUNTED = re.compile(rf"replica_groups={_IOTA}")
_MESH = re.compile(
    rf"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\({_IOTA}\))? \{{([^}}]*)\}}"
)
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")


@dataclass(frozen=True)
class HloCollective:
    """
    A collective of a compiled function.

    - `kind`: its name in DistIR, such as `all_reduce`;
    - `groups`: the groups of devices that communicate with each other;
    - `sizes`: the bytes of each of its operands on a device;
    - `names`: for each operand, the name that JAX gave to its op;
    - `times`: the number of times that a step runs it.
    """

    kind: str
    groups: Groups
    sizes: tuple[float, ...]
    names: tuple[str, ...]
    times: int

    @property
    def sent(self) -> tuple[float, ...]:
        """
        The bytes that a device sends for each operand in one run of the collective. As
        in the simulator, the bytes are counted for an exchange in which each device of
        a group sends its share to every other device.
        """
        count = max(map(len, self.groups), default=1)
        factor = {
            "all_reduce": 2 * (count - 1) / count,
            "all_gather": count - 1,
            "reduce_scatter": (count - 1) / count,
            "all_to_all": (count - 1) / count,
        }.get(self.kind, float(count > 1))
        return tuple(factor * size for size in self.sizes)


@dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    opcode: str
    operands: Sequence[str]
    rest: str


def hlo_collectives(text: str) -> list[HloCollective]:
    """
    Returns the collectives of a compiled function, in the order of its HLO `text`,
    which `jax.stages.Compiled.as_text()` returns. Raises DistIRError for a text without
    an entry computation, for groups of devices in an unknown notation, and for a
    collective in a loop whose number of iterations is unknown.
    """
    computations, entry = _computations(text)
    found = _PARTITIONS.search(text)
    devices = int(found[1]) if found else 1
    types = {
        instruction.name: instruction.type
        for instructions in computations.values()
        for instruction in instructions
    }
    times = _times(computations, entry)
    collectives: list[HloCollective] = []
    for name, instructions in computations.items():
        for instruction in instructions:
            kind = KINDS.get(instruction.opcode.removesuffix("-start"))
            if kind is None or not times.get(name):
                continue
            if times[name] < 0:
                raise DistIRError(
                    f"{instruction.opcode} {instruction.name} of the compiled function "
                    f"is in a loop whose number of rounds XLA does not know; a scan over "
                    f"a fixed length has one"
                )
            operands = [types[operand] for operand in instruction.operands]
            sizes = tuple(size for type_ in operands for size in _sizes(type_))
            if kind == "all_to_all":  # a part for each device, in operands of their own
                sizes = (sum(sizes),)
            source = _NAME.search(instruction.rest)
            names = _names(source[1] if source else "", len(sizes))
            groups = _groups(instruction, devices)
            collectives.append(HloCollective(kind, groups, sizes, names, times[name]))
    return collectives


def _names(name: str, count: int) -> tuple[str, ...]:
    """
    Returns the names of the `count` tensors of a collective, without the part
    `jit(step)/`. XLA writes the names of several tensors as `jit(step)/(a:b)`.
    """
    name = re.sub(r"^jit\([^()]*\)/", "", name)
    for match in re.finditer(r"(?:^|/)\(", name):
        start = match.end() - 1
        if _closing(name, start) == len(name) - 1:
            parts = name[start + 1 : -1].split(":")
            if len(parts) == count:
                return tuple(name[:start] + part for part in parts)
    return (name,) * count


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """
    Returns the instructions of each computation by its name, and the name of the entry
    computation.
    """
    found: dict[str, list[_Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)) is not None:
            # A type may hold parentheses, but none after a blank and a word.
            opcode = _OPCODE.search(f" {match[2]}")
            if opcode is None:
                continue
            start = opcode.end() - 1
            end = _closing(match[2], start - 1)
            current.append(
                _Instruction(
                    match[1],
                    match[2][: max(0, opcode.start() - 1)],
                    opcode[1],
                    _OPERAND.findall(match[2][start:end]),
                    match[2][end:],
                )
            )
    if not entry:
        raise DistIRError(
            "the text of the compiled function has no ENTRY; give what "
            "jax.jit(f).lower(...).compile() returns"
        )
    return found, entry


def _closing(text: str, start: int) -> int:
    """Returns the position of the parenthesis that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if not depth:
            return position
    return len(text)


def _times(
    computations: Mapping[str, Sequence[_Instruction]], entry: str
) -> dict[str, int]:
    """
    Returns the number of times that a step runs each computation, over all callers. The
    number is -1 for a computation in a loop whose number of iterations is unknown.
    """
    found: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        before = found.get(name, 0)
        found[name] = -1 if min(before, times) < 0 else before + times
        for instruction in computations.get(name, ()):
            inside = times
            if instruction.opcode == "while":
                rounds = _ROUNDS.search(instruction.rest)
                inside = times * int(rounds[1]) if rounds and times > 0 else -1
            called = _CALLED.findall(instruction.rest)
            for branches in _BRANCHES.findall(instruction.rest):
                called += _OPERAND.findall(branches)
            for other in called:
                visit(other, inside)

    visit(entry, 1)
    return found


def _sizes(type_: str) -> list[float]:
    """Returns the bytes of an array, or of each array of a tuple."""
    return [
        _bits(element) / 8 * prod(int(n) for n in shape.split(",") if n)
        for element, shape in _ARRAY.findall(type_)
    ]


def _bits(element: str) -> int:
    number = re.search(r"\d+", element)
    return int(number[0]) if number else 8 * (element == "pred")


def _groups(instruction: _Instruction, devices: int) -> Groups:
    """
    Returns the groups of devices of a collective. For a permutation, each group is a
    pair of a sending device and its target.
    """
    text = instruction.rest
    if (pairs := _PAIRS.search(text)) is not None:
        found = [(int(a), int(b)) for a, b in _PAIR.findall(pairs[1])]
        return tuple(pair for pair in found if pair[0] != pair[1])
    if (listed := _LISTED.search(text)) is not None:
        groups = re.findall(r"\{([\d,]+)\}", listed[1])
        if not groups:
            return (tuple(range(devices)),)
        return tuple(tuple(int(n) for n in group.split(",")) for group in groups)
    if (counted := _COUNTED.search(text)) is not None:
        shape, source, order = (_integers(part) for part in counted.groups())
        return _rows(_iota(source or shape, order).reshape(shape))
    if (mesh := _MESH.search(text)) is not None and "(" not in mesh[5]:
        axes = _AXIS.findall(mesh[1])
        shape = [int(size) for _, size in axes]
        ids = np.arange(prod(shape))
        if mesh[2]:
            ids = _iota(*(_integers(mesh[n]) for n in (2, 4)))
        names = [name for name, _ in axes]
        chosen = [names.index(n) for n in re.findall(r"'([^']*)'", mesh[5])]
        others = [i for i in range(len(names)) if i not in chosen]
        size = prod(shape[i] for i in chosen)
        return _rows(ids.reshape(shape).transpose([*others, *chosen]).reshape(-1, size))
    raise DistIRError(
        f"{instruction.opcode} {instruction.name} of the compiled function has groups "
        f"of devices in a notation that is not known: {text[:200]}"
    )


def _integers(text: str | None) -> list[int]:
    return [int(n) for n in (text or "").split(",") if n]


def _iota(shape: Sequence[int], order: Sequence[int]) -> npt.NDArray[np.intp]:
    """
    Returns the numbers 0, 1, 2, ... as a tensor of shape `shape`, transposed by `order`
    and flattened.
    """
    numbers = np.arange(prod(shape)).reshape(shape)
    return (numbers.transpose(order) if order else numbers).reshape(-1)


def _rows(groups: npt.NDArray[np.intp]) -> Groups:
    return tuple(tuple(int(n) for n in group) for group in groups)
