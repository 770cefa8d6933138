"""
The cost of an op on one device: a registry of functions by op name.

```python
@cost_function("toy.scale")
def scale(context: CostContext) -> Cost:
    return context.roofline(moved=2 * sum(context.result_bytes))
```

An op without a registered function follows the roofline: the op takes the longer of two
times. One is the time of the floating-point operations that the op's sharding rule
counts. The other is the time to move the bytes of the op's operands and results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from xdsl.dialects.builtin import AnyFloat, IntegerType, TensorType
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.kernel import KernelCallOp
from distir.dialects.onnx_ops.traits import VIEWS
from distir.dialects.onnx_ops.values import ElementType, bytes_per_element
from distir.dialects.op_facts import OpFacts
from distir.dialects.registries import Registry
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.block_floats import BlockProductOp
from distir.dialects.train_ops.losses import (
    LOGITS_AT_ONCE,
    CrossEntropyGradOp,
    CrossEntropyOp,
    CrossEntropyPartGradOp,
    ExponentialSumOp,
    is_narrow_loss,
)
from distir.errors import one_of
from distir.interpreters.simulator.costs.hardware import DeviceKind
from distir.interpreters.simulator.fusion import (
    fusions_around,
    is_bucketed,
    is_free,
    is_view,
    joins,
    stays,
    sums_in_product,
)
from distir.interpreters.simulator.joined_products import (
    JOINED,
    JoinedProducts,
    joined_products,
)
from distir.interpreters.simulator.library_kernels import moved_by, moved_by_rotary
from distir.interpreters.simulator.profiles.measured import OpFigures, figures_of
from distir.interpreters.simulator.profiles.profile import DEFAULT, OP_CLASSES, Profile
from distir.interpreters.simulator.work import Product, Work
from distir.sharding.kernel_rule import evaluated, parse_rule
from distir.sharding.rule import Rule


@dataclass(frozen=True)
class Cost:
    """
    The cost of an op on one device. The op takes `seconds`, and `workspace` bytes of
    memory besides its operands and results. The host takes `issue` seconds to issue the
    op.
    """

    seconds: float
    workspace: int = 0
    issue: float = 0.0


FREE = Cost(0.0)

SUM_BYTES = 4
"""The bytes of an element of a sum of gradients over micro-batches."""

NARROW = ("f16", "bf16")
"""The element types whose losses are computed in 32 bits."""

_COPYING = (
    CrossEntropyOp,
    CrossEntropyGradOp,
    CrossEntropyPartGradOp,
    ExponentialSumOp,
)
"""The ops of losses that read logits and compute with them in 32 bits or more."""


def copies_of_part(op: Operation, size: int, element: str) -> int:
    """
    Returns the bytes of the copies of logits that a generated package makes for a loss
    or its gradient; 0 if `op` is neither. The logits have `size` bytes in all and
    element type `element`.

    A package computes `LOGITS_AT_ONCE` logits at a time. The loss copies this part as
    its log-softmax, and 16-bit logits also in 32 bits. The gradient copies this part as
    its softmax in 32 bits, and holds its gradient beside the whole gradient.
    """
    if not isinstance(op, _COPYING):
        return 0
    width = 2 if element in NARROW else 8 if element == "f64" else 4
    wide, logits = max(width, 4), size // width
    part = min(logits, LOGITS_AT_ONCE)
    if isinstance(op, CrossEntropyOp):
        return part * (wide if width == wide else 2 * wide)
    is_cut = logits > part
    if isinstance(op, ExponentialSumOp):
        return part * wide
    if width == wide:
        return part * wide if is_cut else 0
    return part * (wide + (width if is_cut else 0))


@dataclass(frozen=True)
class CostContext:
    """
    An op on one device: the inputs of a cost function.

    - `op`: the op, with global shapes in its types;
    - `device`: the kind of device that runs it;
    - `work`: the op's work on this device, derived from its sharding rule;
    - `operand_bytes`, `result_bytes`: the bytes of this device's parts;
    - `load`: the number of this device's rows of experts, as a multiple of the number
      that `work` assumes.
    """

    op: Operation
    device: DeviceKind
    work: Work
    operand_bytes: tuple[int, ...]
    result_bytes: tuple[int, ...]
    load: float = 1.0

    @property
    def flops(self) -> float:
        """The number of floating-point operations on this device."""
        return self.work.flops

    @property
    def bytes(self) -> int:
        """
        The number of bytes read and written if each operand and result is accessed
        once.
        """
        return sum(self.operand_bytes) + sum(self.result_bytes)

    @cached_property
    def element_type(self) -> str:
        """
        The element type in which the op computes, by the rule of `computing_type`. The
        order of operands does not matter.
        """
        return computing_type(self.op, self.work.rule)

    @property
    def seconds_at_peak(self) -> float:
        """
        The seconds of the floating-point operations alone, at the device's peak; 0 if
        the peak is unknown.
        """
        if not self.flops:
            return 0.0
        rates = self.device.peak_flops
        rate = rates.get(self.element_type, rates.get("default"))
        return self.flops / rate if rate else 0.0

    @property
    def copies_of_logits(self) -> int:
        """
        The bytes of the copies of logits that the software makes for a loss or its
        gradient; 0 if the op is neither, and without a profile. The profile gives the
        copies, in 32 bits unless the model computes the loss in 16; by default they are
        those of generated packages (`copies_of_part`).
        """
        profile = self.device.profile
        if profile is None or class_of(self.op) != "loss":
            return 0
        if profile.memory.logit is None:
            return copies_of_part(self.op, max(self.operand_bytes), self.element_type)
        size, logit = max(self.operand_bytes), profile.memory.logit
        if self.element_type not in NARROW or is_narrow_loss(self.op):
            # Two of the software's tensors are the op's own operand and result.
            copied = max(logit - 8, 0) if isinstance(self.op, _COPYING) else 0
            return round(copied * size / 4)
        return round(logit * size / 2)

    def roofline(
        self,
        flops: float | None = None,
        moved: float | None = None,
        product: Product | None = None,
    ) -> Cost:
        """
        Returns the cost of an op that computes and moves bytes at the same time: the
        launch latency, plus the longer of the times to compute and to move. With a
        profile, the time follows the curve of the op's class. By default, `flops`
        (operations), `moved` (bytes) and `product` (the op as products of matrices) are
        derived from the op.
        """
        flops = self.flops if flops is None else flops
        moved = self.bytes if moved is None else moved
        device = self.device
        if device.profile is not None:
            measured = self._measured(device.profile)
            if measured is not None:
                return Cost(measured.seconds(flops, moved))
            return self._profiled(device.profile, flops, moved, product)
        compute = flops / device.peak(self.element_type) if flops else 0.0
        moved, goes_on = self._moved(moved, frozenset())
        memory = moved / device.memory_bandwidth
        latency = 0.0 if goes_on else device.launch_latency
        return Cost(latency + max(compute, memory))

    def _moved(self, moved: float, known: frozenset[str]) -> tuple[float, bool]:
        """
        Returns the bytes that pass through memory after fusion, and whether the kernel
        of an earlier op computes this op. `moved` is the number of bytes without
        fusion. `known` names the fusions that the simulated software performs.
        """
        fusions = fusions_around(self.op, known)
        before, after = joins(self.op, fusions), stays(self.op, fusions)
        if before is not None:
            moved -= self.operand_bytes[list(self.op.operands).index(before)]
        if after is not None:
            moved -= self.result_bytes[after.index]
        return max(moved, 0), before is not None

    def unworked(self) -> Cost:
        """
        Returns the cost of an op without work: the op only gives its operand a new name
        or shape.
        """
        profile = self.device.profile
        measured = None if profile is None else self._measured(profile)
        return FREE if measured is None else Cost(measured.seconds(0, self.bytes))

    def _measured(self, profile: Profile) -> OpFigures | None:
        """
        Returns the profile's figures for this single op, or None if the op was not
        measured.
        """
        table = profile.ops.get(self.element_type, profile.ops.get(DEFAULT))
        return None if table is None else figures_of(self.op, table)

    def _profiled(
        self, profile: Profile, flops: float, moved: float, product: Product | None
    ) -> Cost:
        sizes = (*self.operand_bytes, *self.result_bytes)
        if is_view(self.op, profile.fusion) or max(sizes, default=0) <= 8:
            return FREE  # numbers are the host's business
        if is_free(self.op, profile.fusion):
            return FREE
        if profile.written_out:
            cost = self._written_out(profile, moved)
            if cost is not None:
                return cost
        fused = moved_by(self.op, profile.fusion, self.operand_bytes, self.result_bytes)
        if fused == 0:
            return FREE
        if fused is not None:
            moved, goes_on = fused, False
        else:
            moved, goes_on = self._moved(moved, profile.fusion)
        if sums_in_product(self.op, profile.fusion):
            elements = self.result_bytes[0] / bytes_per_element(
                element_type(self.op.results[0])
            )
            moved += 2 * SUM_BYTES * elements - self.result_bytes[0]
        op_class = class_of(self.op) or ("contraction" if flops else "elementwise")
        curve = profile.curve(self.element_type, op_class)
        bandwidth = self.device.memory_bandwidth
        if goes_on or is_bucketed(self.op, profile.fusion):
            return Cost(moved / (bandwidth * curve.bandwidth))
        if not flops:
            seconds = curve.moving_seconds(moved, bandwidth)
        else:
            peak = self.device.peak(self.element_type)
            if op_class == "contraction":
                product = product or self.work.product
            joined = self._joined(profile)
            if joined is None or product is None:
                seconds = curve.seconds(flops, product, moved, peak, bandwidth)
            else:
                first, second, *_ = self.operand_bytes
                result = self.result_bytes[0]
                added = (moved - first - second - result) * joined.columns
                moved = joined.moved(first, second, result) + added
                product, flops = joined.product(product), flops * joined.count
                seconds = curve.seconds(flops, product, moved, peak, bandwidth)
                seconds /= joined.count
        if not profile.dispatch.ahead:
            return Cost(max(seconds, profile.dispatch.op))
        return Cost(seconds, issue=profile.dispatch.op)

    def _written_out(self, profile: Profile, moved: float) -> Cost | None:
        """
        Returns the cost of an op that the software writes out as several elementwise
        kernels. Returns None if the software does not do this. `moved` is the number of
        bytes of the op's operands and results.
        """
        kernels = profile.written_out.get(self.op.name)
        if kernels is None and "rotary" in profile.written_out:
            rotary = moved_by_rotary(self.op, self.result_bytes)
            if rotary == 0:
                return FREE
            if rotary is not None:
                kernels, moved = profile.written_out["rotary"], rotary
        if kernels is None:
            return None
        curve = profile.curve(self.element_type, "elementwise")
        count, dispatch = kernels.kernels, profile.dispatch
        moved = moved * kernels.moved
        seconds = count * curve.overhead + moved / (
            self.device.memory_bandwidth * curve.bandwidth
        )
        if not dispatch.ahead:
            return Cost(max(seconds, count * dispatch.op))
        return Cost(seconds, issue=count * dispatch.op)

    def _joined(self, profile: Profile) -> JoinedProducts | None:
        """
        Returns the joint product in which the software computes this op together with
        other products, or None if the software computes this op by itself.
        """
        return joined_products(self.op) if JOINED in profile.fusion else None


def computing_type(op: Operation, rule: Rule) -> str:
    """
    Returns the name of the element type in which an op computes, such as `f16`, or
    `default` if the op has no tensors. Products of blocks compute in their recipe, such
    as `mxfp8`, for which a device has a rate of its own.

    The result depends on the op's types and its sharding rule, never on the order of
    operands. If the op multiplies and adds up, only the types of the factors matter,
    such as the two matrices of a product, but not their scales. Factors are the
    operands with a dimension that the results lack. Among several types, the result is
    a float rather than an integer, and then the narrowest. This is because libraries
    multiply in the type of the factors, and keep sums, statistics and masks in wider
    types. If no operand is a tensor, the types of the results decide. The class of an
    op may name the operand that decides (`COMPUTES_IN`).
    """
    operands: Sequence[SSAValue] = op.operands
    if isinstance(op, BlockProductOp):
        return op.recipe.data
    if isinstance(op, OpFacts) and op.COMPUTES_IN:
        operands = [getattr(op, op.COMPUTES_IN)]
    elif rule.flops:
        summed = set(range(len(rule.factors))) - rule.result_factors
        operands = [
            value
            for value, dims in zip(operands, rule.operands, strict=True)
            if any(factor in summed for dim in dims for factor in dim)
        ] or operands
    for values in (operands, op.operands, op.results):
        types = {
            value.type.element_type
            for value in values
            if isinstance(value.type, TensorType)
        }
        if types:
            return min(map(_rank_of_type, types))[-1]
    return DEFAULT


@lru_cache
def _rank_of_type(element: Attribute) -> tuple[bool, bool, float, str]:
    """
    Returns a sort key for element types: floats come before integers, integers before
    all other types, and narrow types before wide ones. Types that are equal in these
    respects are sorted by name.
    """
    name = element.kind.data if isinstance(element, ElementType) else str(element)
    is_float = isinstance(element, AnyFloat) or name.startswith("float")
    is_number = is_float or (
        isinstance(element, IntegerType) and element.width.data > 1
    )
    width = bytes_per_element(element) if is_number else 0.0
    return not is_float, not is_number, width, name


CostFunction = Callable[[CostContext], Cost]

_FAMILIES = "distir.interpreters.train"
"""
The package whose modules register the costs of training ops, next to their
implementations.
"""

cost_function = Registry[CostFunction](_FAMILIES)
"""
Registers the cost of the ops with the given names: a function from a `CostContext` to a
`Cost`.
"""

_CLASSES = Registry[str](_FAMILIES)


def op_class(name: str, *ops: str) -> None:
    """
    Declares that the ops named `ops` belong to the class `name`, one of
    `profiles.OP_CLASSES`. The class of an op selects its curve in a profile. Subclasses
    of `OpFacts` declare their class themselves, as `COST_CLASS`. Ops without a declared
    class count as contractions if they have floating-point operations, else as
    elementwise.
    """
    one_of("class of ops", name, OP_CLASSES)
    _CLASSES(*ops)(name)


def class_of(op: Operation) -> str | None:
    """
    Returns the declared class of an op, or None if none is declared. The class selects
    the op's curve in a profile.
    """
    if isinstance(op, OpFacts) and op.COST_CLASS:
        return op.COST_CLASS
    return _CLASSES.of(op)


def cost_of(context: CostContext) -> Cost:
    """
    Returns the cost of an op on one device. An op without a registered cost function
    follows the roofline.
    """
    function = cost_function.of(context.op)
    if function is not None:
        cost = function(context)
    else:
        cost = context.unworked() if VIEWS.of(context.op) else context.roofline()
    copies = context.copies_of_logits
    return replace(cost, workspace=cost.workspace + copies) if copies else cost


@cost_function("onnx.Constant", "onnx.Shape", "onnx.Size", "dist.constrain")
def no_work(context: CostContext) -> Cost:
    """Returns the cost of ops that compute nothing when the program runs."""
    return context.unworked()


@cost_function("onnx.Gather", "onnx.GatherElements", "onnx.GatherND")
def lookup(context: CostContext) -> Cost:
    """
    Returns the cost of a look-up. The op reads the indices and the elements that they
    select, not the whole table.
    """
    indices = sum(context.operand_bytes[1:])
    return context.roofline(moved=indices + 2 * sum(context.result_bytes))


@cost_function("onnx.Slice", "collective.slice")
def selection(context: CostContext) -> Cost:
    """
    Returns the cost of an op that selects a part of a tensor. The op reads and writes
    that part only.
    """
    return context.roofline(moved=2 * sum(context.result_bytes))


@cost_function("onnx.TensorScatter")
def cache_write(context: CostContext) -> Cost:
    """
    Returns the cost of writing new tokens to a cache, in the cache's own memory. The op
    reads the positions of the tokens, and reads and writes the tokens.
    """
    return context.roofline(
        moved=sum(context.operand_bytes[1:]) + context.operand_bytes[1]
    )


@cost_function("onnx.ConstantOfShape", "onnx.Range", "onnx.Expand")
def fill(context: CostContext) -> Cost:
    """
    Returns the cost of an op that fills a tensor. The op writes its result;
    `onnx.Expand` also reads its operand.
    """
    moved = sum(context.result_bytes)
    if context.op.name == "onnx.Expand":
        moved += context.operand_bytes[0]
    return context.roofline(moved=moved)


@cost_function("kernel.call")
def kernel_call(context: CostContext) -> Cost:
    """
    Returns the cost of a user's kernel. The kernel accesses operands and results once,
    and needs the workspace that it declares.
    """
    op = context.op
    assert isinstance(op, KernelCallOp)
    cost = context.roofline()
    if op.workspace is None:
        return cost
    rule = parse_rule(op.rule.data)
    inputs, outputs = (
        [shape_of(v.type) for v in values] for values in (op.inputs, op.outputs)
    )
    parts = context.work.parts
    local = {
        name: size // parts.get(factor, 1)
        for factor, (name, size) in enumerate(rule.sizes(inputs, outputs).items())
    }
    return replace(cost, workspace=evaluated(op.workspace.data, local))


op_class("attention", "kernel.call", "onnx.Attention")
op_class(
    "convolution",
    "onnx.Conv",
    "onnx.ConvTranspose",
)
op_class(
    "normalization",
    "onnx.LayerNormalization",
    "onnx.LogSoftmax",
    "onnx.RMSNormalization",
    "onnx.Softmax",
)
op_class(
    "gather",
    "onnx.Gather",
    "onnx.GatherElements",
    "onnx.GatherND",
)
