"""
Sharding rules as text, for ops whose rule depends on shapes only. The text is an op's
`FACTORS`, or a row in the table of ONNX operators.

    [n, c, *s], [n, *p, ?] -> [n, c, *p] keep s linear 0

The notation is also used for users' kernels (`kernel_rule`). It names the factors of
each dimension of each operand and result. Several factors of one dimension are listed
from major to minor (`[b, g h]`). Without brackets, spaces separate dimensions, as in `m
k, k n -> m n`, and a dimension of several factors is in parentheses: `b (g h) -> b g
h`. A factor that no result has is summed over. If only some results have a factor, a
split of it leaves partial sums in the results that lack it. In addition:

- `*s` stands for any number of dimensions; equal names stand for the same dimensions.
  `*a@axis` stands for as many dimensions as the attribute `axis` says. `g@groups` is a
  factor of the size in the attribute `groups`. An attribute is an ONNX attribute, or a
  property of the op's class.
- `?` is a dimension of any size that cannot be split and is unrelated to all other
  dimensions, `*?` is any number of such dimensions, and `?t` gives the size of such a
  dimension a name.
- `keep s t`: factors that stay whole.
- `max v`, `min v`: factors that are reduced by maximum or minimum instead of a sum.
- `decompose v`: factors that only the op's decomposition can split.
- `linear 0, 1+2`: operands through which partial sums pass, alone (0) or together
  (1+2). `linear max 0` means that partial maxima pass, and `linear any 0` partial
  values of every reduction.
- `flops 2*n*c/3`: the number of operations, a product of sizes of factors and of
  `*name`s with an optional divisor.

Optional operands and results that an op lacks are left out. The text of a variadic
operand or result is repeated for each of its values, unless the rule has a text for
each value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation

from distir.dialects.dist import REDUCTIONS
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError, listed
from distir.program import describe
from distir.sharding.kernel_rule import KernelRule, NamedDim, NamedDims, evaluated
from distir.sharding.rule import Dim, Factor, Kind, Linear, Rule, RuleFunction

Shape = tuple[int, ...]
Group = tuple[Shape, ...]
"""
The shapes of the values of one operand or result in an op's definition. An absent
optional one has no shape; a variadic one has several.
"""

_CLAUSE = re.compile(r"\s(keep|max|min|decompose|linear|flops)\s")
_TENSOR = re.compile(r"\[([^\[\]]*)\]")
_WORD = re.compile(r"\*?\??[A-Za-z_]\w*(@\w+)?|\*?\?", re.ASCII)
_PLAIN_DIM = re.compile(r"\(([^()]*)\)|([^\s()]+)")


class UnfitShapesError(ValueError):
    """
    The error that shapes do not fit the text of a rule. Also the error that the shapes
    do not determine the sizes of all factors, or the number of dimensions of a `*name`.
    """


@dataclass(frozen=True)
class FactorText:
    """
    The parsed text of a sharding rule: the words of each dimension of each operand and
    result, and the text of each clause (`keep`, `linear`, ...) by the clause's name.
    """

    operands: tuple[tuple[tuple[str, ...], ...], ...]
    results: tuple[tuple[tuple[str, ...], ...], ...]
    clauses: dict[str, str]

    def names(self, clause: str) -> frozenset[str]:
        """
        Returns the names of the factors and of the groups of dimensions (`*name`) that
        the clause `clause` lists.
        """
        return frozenset(self.clauses.get(clause, "").split())

    @property
    def attributes(self) -> list[str]:
        """
        The names of the attributes that give the sizes of factors or the numbers of
        dimensions of `*name`.
        """
        tensors = (*self.operands, *self.results)
        words = (word for dims in tensors for dim in dims for word in dim)
        return [attribute for _, _, attribute in map(_parts, words) if attribute]

    def linear(self) -> list[tuple[frozenset[int], frozenset[str]]]:
        """
        Returns the sets of operands through which partial values pass, each with the
        reductions of these values, such as "sum".
        """
        text = self.clauses.get("linear", "")
        first, _, rest = text.partition(" ")
        reductions = frozenset(REDUCTIONS if first == "any" else (first,))
        if first not in ("any", *REDUCTIONS):
            reductions, rest = frozenset({"sum"}), text
        groups = [group for group in rest.split(",") if group]
        return [(frozenset(map(int, g.split("+"))), reductions) for g in groups]


@lru_cache(maxsize=512)
def parsed(text: str) -> FactorText:
    """
    Parses the text of a sharding rule. Raises ValueError if a clause or a tensor of the
    text is malformed.
    """
    dims, *clauses = _CLAUSE.split(" ".join(text.split()))
    sides = dims.split("->")
    is_plain = "[" not in dims
    rest = _PLAIN_DIM.sub("", dims) if is_plain else _TENSOR.sub("", dims)
    if len(sides) != 2 or rest.strip(", ->"):
        raise ValueError(
            f"cannot read the factors {text!r}; write the dimensions of each operand and "
            f"result, as in 'm k, k n -> m n'"
        )

    def plain(tensor: str) -> tuple[tuple[str, ...], ...]:
        found = _PLAIN_DIM.finditer(tensor)
        return tuple(tuple((d[1] or d[2] or "").split()) for d in found)

    def tensors(side: str) -> tuple[tuple[tuple[str, ...], ...], ...]:
        if is_plain:
            # No text before the arrow: no operand. No text after it: a scalar.
            is_empty = side is sides[0] and not side.strip()
            return () if is_empty else tuple(map(plain, side.split(",")))
        found = (match.group(1) for match in _TENSOR.finditer(side))
        return tuple(
            tuple(tuple(dim.split()) for dim in inner.split(",") if dim.strip())
            for inner in found
        )

    return FactorText(
        *map(tensors, sides),
        clauses=dict(zip(clauses[::2], clauses[1::2], strict=True)),
    )


def checked_rule(text: str) -> RuleFunction:
    """
    Returns the sharding rule that `text` describes, as a function from an op to its
    rule.

    The text has the dimensions of each operand and each result, such as `"m k, k n -> m
    n"`: spaces separate dimensions, and commas separate tensors. Equal names are one
    factor; a factor that no result has is summed over. `b (g h)` has a dimension of two
    factors, `*s` is any number of dimensions, `?` a dimension that stays whole, and
    `g@groups` a factor of the size in the op's attribute `groups`. For a variadic
    operand, one text stands for all its values, unless the rule has a text for each.
    Clauses may follow:

    - `keep k m`: factors that stay whole;
    - `max k`, `min k`: factors that are reduced by maximum or minimum instead of a sum;
    - `decompose k`: factors that only the op's decomposition can split;
    - `linear 0, 1+2`: operands through which partial sums pass, alone (0) or together;
    - `flops 2*m*n*k`: the number of floating-point operations.

    Raises DistIRError if the text cannot be read, or if a clause names a factor or an
    operand that the dimensions lack. An op whose shapes do not fit is replicated.
    """
    _check(text)
    return rule_from(text)


def _check(text: str) -> None:
    """
    Raises DistIRError if `text` is not a valid rule: if it cannot be read, or if a
    clause names a factor or an operand that the dimensions lack.
    """
    try:
        found = parsed(text)
        linear = found.linear()
    except ValueError as error:
        raise DistIRError(f"rule {text!r}: {error}") from error
    words = [w for t in (*found.operands, *found.results) for dim in t for w in dim]
    wrong = [word for word in words if not _WORD.fullmatch(word)]
    if wrong:
        raise DistIRError(
            f"rule {text!r}: {wrong[0]!r} names no factor; write a letter or a word, `?` "
            f"for a dimension that stays whole, or `*s` for any number of dimensions"
        )
    for tensor in (*found.operands, *found.results):
        names = [_parts(w)[1] for dim in tensor for w in dim if not w.endswith("?")]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DistIRError(
                f"rule {text!r}: {twice[0]!r} stands twice in one tensor, and no axis can "
                f"split two of its dimensions; write `?` for both"
            )
    known = {name.removeprefix("?") for _, name, _ in map(_parts, words)}
    named = {n for c in ("keep", "decompose", *REDUCTIONS) for n in found.names(c)}
    named |= set(re.findall(r"[A-Za-z_]\w*", found.clauses.get("flops", "")))
    strangers = sorted(named - known)
    if strangers:
        raise DistIRError(
            f"rule {text!r} names {listed(strangers)}, which no dimension has; the factors "
            f"are {listed(sorted(known))}"
        )
    count = len(found.operands)
    if any(i >= count for operands, _ in linear for i in operands):
        raise DistIRError(
            f"rule {text!r}: `linear` counts operands from 0, and there are {count}"
        )


def rule_from(text: str) -> RuleFunction:
    """
    Returns a function from an op to its sharding rule, derived from `text`. The rule is
    replicated if a shape is unknown or does not fit the text (the softmax of a scalar).
    Like the function of any other rule, it must be registered:

    ```python
    sharding_rule("toy.outer")(rule_from("[i], [j] -> [i, j] flops i*j"))
    ```
    """
    pattern = parsed(text)
    numbers = tuple(dict.fromkeys(pattern.attributes))

    def function(op: Operation) -> Rule:
        groups = _shapes(op)
        if groups is None:
            return Rule.replicated(op)
        groups = (
            _one_for_each(groups[0], len(pattern.operands)),
            _one_for_each(groups[1], len(pattern.results)),
        )
        known = tuple((name, _attribute(op, name)) for name in numbers)
        try:
            return rule_for_shapes(text, *groups, known)
        except UnfitShapesError:
            return Rule.replicated(op)

    return function


def _one_for_each(groups: tuple[Group, ...], count: int) -> tuple[Group, ...]:
    """
    Returns groups of shapes that match the tensors in the text of a rule. `count` is
    the number of these tensors. A group of `groups` holds the shapes of one variadic
    operand or result. If `count` is the number of all shapes, but not the number of
    groups, each shape becomes its own group. Otherwise returns `groups`.
    """
    shapes = [shape for group in groups for shape in group]
    if len(groups) != count and len(shapes) == count:
        return tuple((shape,) for shape in shapes)
    return groups


def _shapes(op: Operation) -> tuple[tuple[Group, ...], tuple[Group, ...]] | None:
    """
    Returns two tuples of groups of shapes: one group for each operand, and one for each
    result, in the op's definition. The result is None if any shape is unknown.
    """
    values = (*op.operands, *op.results)
    for value in values:
        if not isinstance(value.type, TensorType) or -1 in value.type.get_shape():
            return None
    if isinstance(op, OnnxOp):
        inputs = [() if v is None else (shape_of(v),) for v in op.input_values]
        return tuple(inputs), tuple((shape_of(v),) for v in op.results)
    if not isinstance(op, IRDLOperation):  # of a dialect that is not installed
        operands = tuple((shape_of(v),) for v in op.operands)
        return operands, tuple((shape_of(v),) for v in op.results)
    definition = op.get_irdl_definition()

    def of(names: Sequence[str], values: Sequence[SSAValue]) -> tuple[Group, ...]:
        found = [getattr(op, name) for name in names]
        lists = [
            [v] if isinstance(v, SSAValue) else [] if v is None else v for v in found
        ]
        assert sum(map(len, lists)) == len(values)
        return tuple(tuple(shape_of(v) for v in each) for each in lists)

    operands = of([name for name, _ in definition.operands], op.operands)
    return operands, of([name for name, _ in definition.results], op.results)


def _attribute(op: Operation, name: str) -> int:
    """
    Returns the value of the integer attribute `name` of an op. Raises DistIRError if
    the op does not have this attribute.
    """
    if isinstance(op, OnnxOp):
        found = op.attribute(name)
    elif isinstance(op, IRDLOperation):
        found = getattr(op, name, None)
    else:
        found = op.properties.get(name)
    number = found.value.data if isinstance(found, IntegerAttr) else found
    if not isinstance(number, int):
        raise DistIRError(
            f"the sharding rule of {describe(op)} needs the integer attribute {name!r}, "
            f"which the op lacks"
        )
    return number


def _parts(word: str) -> tuple[bool, str, str]:
    """
    Splits a word of a sharding rule's text. Returns whether the word stands for several
    dimensions (`*name`), its name, and the name of the attribute that gives its size
    ("" if there is none).
    """
    name, _, attribute = word.partition("@")
    return name.startswith("*"), name.removeprefix("*"), attribute


@lru_cache(maxsize=8192)
def rule_for_shapes(
    text: str,
    operands: tuple[Group, ...],
    results: tuple[Group, ...],
    attributes: tuple[tuple[str, int], ...],
) -> Rule:
    """
    Returns the sharding rule that `text` describes for operands and results of the
    given shapes. `attributes` holds the values of the attributes that the text names.

    Raises UnfitShapesError if the shapes do not fit the text, or do not determine the
    number of dimensions of each `*name` and the sizes of factors.
    """
    known, pattern = dict(attributes), parsed(text)
    given = [(i, s) for i, group in enumerate(operands) for s in group]
    # What the text does not mention is needed whole.
    read = [(i, s) for i, s in given if i < len(pattern.operands)]
    made = [(i, s) for i, group in enumerate(results) for s in group]
    tensors = [(pattern.operands[i], s) for i, s in read]
    tensors += [(pattern.results[i], s) for i, s in made]
    lengths, sizes = _lengths(tensors, known)
    anonymous = iter(f"?{i}" for i in range(10**6))
    named = [tuple(_expanded(dims, lengths, anonymous)) for dims, _ in tensors]
    kernel = KernelRule(tuple(named[: len(read)]), tuple(named[len(read) :]))
    shapes = [s for _, s in read], [s for _, s in made]
    try:
        sizes = kernel.sizes(*shapes, known=sizes)
    except DistIRError as error:
        raise UnfitShapesError(str(error)) from error

    factors: list[Factor] = []
    number: dict[str, Dim] = {}
    chosen = {clause: pattern.names(clause) for clause in pattern.clauses}
    for name in kernel.names:
        if name.startswith("?") or sizes[name] <= 1:
            number[name] = ()
            continue
        run = name.partition(".")[0]
        is_result = any(name in dim for dims in kernel.results for dim in dims)
        kind: Kind = "parallel" if is_result else "reduction"
        if run in chosen.get("keep", ()):
            kind = "replicate"
        reduction = next((m for m in ("max", "min") if run in chosen.get(m, ())), "sum")
        number[name] = (len(factors),)
        factors.append(Factor(sizes[name], kind, reduction))

    def numbered(dims: NamedDims) -> tuple[Dim, ...]:
        return tuple(
            tuple(f for name in dim if isinstance(name, str) for f in number[name])
            for dim in dims
        )

    inputs = [numbered(dims) for dims in kernel.operands]
    inputs += [((),) * len(s) for _, s in given[len(read) :]]
    outputs = tuple(numbered(dims) for dims in kernel.results)
    index = {i: n for n, (i, _) in enumerate(given)}
    partial = {
        f: frozenset(r for r, dims in enumerate(outputs) if (f,) not in _split(dims))
        for f, factor in enumerate(factors)
        if factor.kind == "parallel"
    }
    return Rule(
        factors=tuple(factors),
        operands=tuple(inputs),
        results=outputs,
        linear=tuple(
            Linear(frozenset(index[i] for i in group), reductions)
            for group, reductions in pattern.linear()
            if group <= index.keys()
        ),
        decomposed=frozenset(
            f
            for name, dim in number.items()
            if name.partition(".")[0] in chosen.get("decompose", ())
            for f in dim
        ),
        partial_results={f: r for f, r in partial.items() if r},
        flops=_flops(pattern.clauses.get("flops", ""), sizes, lengths),
    )


def _split(dims: Sequence[Dim]) -> set[Dim]:
    return {(factor,) for dim in dims for factor in dim}


def _lengths(
    tensors: Sequence[tuple[tuple[tuple[str, ...], ...], Shape]], known: dict[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """
    Returns two dictionaries: the number of dimensions of each `*name`, and the sizes of
    the factors that attributes give. An unnamed `*?` is keyed by the pattern of its
    tensor. Raises UnfitShapesError if a shape does not fit.
    """
    lengths: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for dims, shape in tensors:
        for word in (word for dim in dims for word in dim):
            is_run, name, attribute = _parts(word)
            if attribute and is_run:
                lengths[name] = known[attribute] % max(len(shape), 1)
            elif attribute:
                sizes[name] = known[attribute]
    pending = list(tensors)
    while pending:
        left: list[tuple[tuple[tuple[str, ...], ...], Shape]] = []
        for dims, shape in pending:
            runs = [_parts(dim[0])[1] for dim in dims if _parts(dim[0])[0]]
            keys = [_key(name, dims) for name in runs]
            free = [key for key in keys if key not in lengths]
            if len(free) > 1:
                left.append((dims, shape))
                continue
            rest = len(shape) - (len(dims) - len(runs))
            rest -= sum(lengths[key] for key in keys if key in lengths)
            if rest < 0 or (rest and not free):
                raise UnfitShapesError(
                    f"{dims} is no tensor of {len(shape)} dimensions"
                )
            lengths.update(dict.fromkeys(free, rest))
        if len(left) == len(pending):
            raise UnfitShapesError(
                f"the lengths of the runs in {left[0][0]} do not follow"
            )
        pending = left
    return lengths, sizes


def _key(name: str, dims: tuple[tuple[str, ...], ...]) -> str:
    """
    Returns the key under which the number of dimensions of `*name` is stored. The key
    is the name or, for the unnamed `*?`, specific to the pattern `dims`.
    """
    return name if name != "?" else f"? in {dims}"


def _expanded(
    dims: tuple[tuple[str, ...], ...],
    lengths: dict[str, int],
    anonymous: Iterator[str],
) -> Iterator[NamedDim]:
    """
    Yields the dimensions, with each word for several dimensions (`*s`) expanded into
    one name per dimension (`s.0`, `s.1`).
    """
    for dim in dims:
        is_run, name, _ = _parts(dim[0])
        if is_run:
            for i in range(lengths[_key(name, dims)]):
                yield (next(anonymous) if name == "?" else f"{name}.{i}",)
        else:
            names = [_parts(word)[1] for word in dim]
            yield tuple(next(anonymous) if n == "?" else n for n in names)


def _flops(text: str, sizes: dict[str, int], lengths: dict[str, int]) -> int:
    """
    Returns the value of `text`, a product of sizes, rounded down after its division.
    The name of several dimensions (`*s`) means the product of their sizes. An empty
    text gives 0.
    """
    if not text:
        return 0
    totals = {name.removeprefix("?"): 1 for name in lengths}
    for name, size in sizes.items():
        run = name.removeprefix("?").partition(".")[0]
        totals[run] = totals.get(run, 1) * size
    product, _, divisor = text.partition("/")
    return evaluated(product, totals) // int(divisor or 1)
