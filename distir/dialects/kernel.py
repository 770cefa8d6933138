"""
The `kernel` dialect: a user's functions that replace groups of ops.

A `kernel.def` names a Python function and holds its *reference*: the ops that it
replaces. A `kernel.call` takes the place of these ops in the sequential, the
distributed and the per-rank form. The reference defines the kernel's meaning, its
gradient and its work, and proves its sharding rule. The text of a program only names
the function; reading the text loads no user code.

```mlir
kernel.def @scores attributes {implementation = "mine:scores", rule = "[b, q, d], [b, k, d] -> [b, q, k]"} {
^bb0(%q: tensor<2x8x4xf32>, %k: tensor<2x8x4xf32>):
  %0 = onnx.Transpose(%k) {perm = [0 : i64, 2 : i64, 1 : i64]} : (...) -> tensor<2x4x8xf32>
  %1 = onnx.MatMul(%q, %0) : (...) -> tensor<2x8x8xf32>
  kernel.result %1 : tensor<2x8x8xf32>
}
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseArrayBase,
    DictionaryAttr,
    Float16Type,
    FloatAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    UnitAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator, Pure
from xdsl.utils.exceptions import VerifyException

IMPLEMENTATION = re.compile(r"[A-Za-z_]\w*:[A-Za-z_]\w*", re.ASCII)
"""
Matches the full name of a function, `module:function`, such as `my_kernels:attention`.
"""

Option = IntegerAttr | FloatAttr | StringAttr
"""The attribute type of a kernel's option."""

TOLERANCE, TOLERANCE_16_BITS = 1e-3, 2e-2
"""
The default tolerances of a kernel, for types of more than 16 bits and for types with 16
bits: the largest difference from the reference, relative to the largest element.
"""


@irdl_op_definition
class KernelDefOp(IRDLOperation):
    """
    A user's kernel.

    - `implementation`: the Python function, `module:function`. It takes tensors like
      the reference's arguments and returns a tensor like its result;
    - `rule`: the kernel's sharding rule, in the notation of
      `distir.sharding.kernel_rule`;
    - `flops`: floating-point operations, written as a sum of products of the rule's
      factors;
    - `gradient`: the source of the gradient: if absent, the reference is
      differentiated; `autograd` lets PyTorch differentiate the function;
      `module:function` is another function that takes the arguments and the gradient of
      the result and returns a gradient, or None, for each argument;
    - `options`: further arguments of the function by name, numbers or texts;
    - `tolerance`: the largest difference from the reference, relative to the largest
      element;
    - `workspace`: additional bytes that the kernel needs while it runs, written like
      `flops`;
    - `wrt`: only if this kernel is the gradient of another kernel: the positions of the
      arguments whose gradients this kernel returns. The last argument is the gradient
      of the other kernel's result;
    - `autograd`: only with `wrt`: the function is the other kernel's own, which PyTorch
      differentiates.
    """

    name = "kernel.def"

    sym_name = prop_def(SymbolRefAttr)
    implementation = prop_def(StringAttr)
    rule = prop_def(StringAttr)
    flops = opt_prop_def(StringAttr)
    gradient = opt_prop_def(StringAttr)
    options = opt_prop_def(DictionaryAttr)
    tolerance = opt_prop_def(FloatAttr)
    workspace = opt_prop_def(StringAttr)
    wrt = opt_prop_def(DenseArrayBase.constr(i64))
    autograd = opt_prop_def(UnitAttr)
    reference = region_def("single_block")

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(IsolatedFromAbove(), HasParent(ModuleOp))
    assembly_format = "$sym_name attr-dict-with-keyword $reference"

    @staticmethod
    def of(
        name: str,
        implementation: str,
        rule: str,
        reference: Region,
        *,
        flops: str = "",
        gradient: str = "reference",
        options: DictionaryAttr | None = None,
        tolerance: float | None = None,
        workspace: str = "",
        wrt: Sequence[int] | None = None,
        autograd: bool = False,
    ) -> KernelDefOp:
        """
        Returns a kernel with the properties that the arguments give as Python values.
        An empty text leaves its property out.
        """
        properties: dict[str, Attribute] = {
            "sym_name": SymbolRefAttr(name),
            "implementation": StringAttr(implementation),
            "rule": StringAttr(rule),
        }
        if flops:
            properties["flops"] = StringAttr(flops)
        if gradient != "reference":
            properties["gradient"] = StringAttr(gradient)
        if options is not None:
            properties["options"] = options
        if tolerance is not None:
            properties["tolerance"] = FloatAttr(tolerance, f64)
        if workspace:
            properties["workspace"] = StringAttr(workspace)
        if wrt is not None:
            properties["wrt"] = DenseArrayBase.from_list(i64, list(wrt))
        if autograd:
            properties["autograd"] = UnitAttr()
        return KernelDefOp.create(properties=properties, regions=[reference])

    @property
    def symbol(self) -> str:
        """The name of the kernel."""
        return self.sym_name.string_value()

    @property
    def result(self) -> KernelResultOp:
        """The op that ends the reference."""
        last = self.reference.block.last_op
        assert isinstance(last, KernelResultOp)
        return last

    @property
    def named_options(self) -> dict[str, int | float | str]:
        """
        The options that are passed to the kernel's function, by name, as Python values.
        """
        given = {} if self.options is None else self.options.data
        return {name: _option(attr) for name, attr in given.items()}

    @property
    def largest_difference(self) -> float:
        """
        The largest accepted difference from the reference, relative to the largest
        element. If the kernel states no tolerance, a default for its element types
        applies.
        """
        if self.tolerance is not None:
            return self.tolerance.value.data
        types = [
            value.type for value in (*self.reference.block.args, *self.result.values)
        ]
        narrow = any(
            isinstance(t, TensorType) and isinstance(t.element_type, _NARROW)
            for t in types
        )
        return TOLERANCE_16_BITS if narrow else TOLERANCE

    def verify_(self) -> None:
        what = f"kernel.def @{self.symbol}"
        if not isinstance(self.reference.block.last_op, KernelResultOp):
            raise VerifyException(f"{what}: its reference ends in kernel.result")
        named = [("implementation", self.implementation.data)]
        if self.gradient is not None and self.gradient.data != "autograd":
            named.append(("gradient", self.gradient.data))
        for name, text in named:
            if not IMPLEMENTATION.fullmatch(text):
                raise VerifyException(
                    f"{what}: {name} = {text!r} names no function; write MODULE:FUNCTION, "
                    f"such as my_kernels:attention"
                )
        for name, attr in ({} if self.options is None else self.options.data).items():
            if not name.isidentifier() or not isinstance(attr, Option):
                raise VerifyException(
                    f"{what}: option {name} = {attr} is no number or text with a name"
                )
        if self.wrt is not None:
            count = len(self.reference.block.args) - 1
            if any(not 0 <= i < count for i in self.wrt.get_values()):
                raise VerifyException(
                    f"{what}: wrt = {self.wrt} are not arguments of it"
                )
        elif self.autograd is not None or len(self.result.values) != 1:
            raise VerifyException(
                f"{what}: a kernel gives one value, or is the gradient of one (`wrt`)"
            )


@irdl_op_definition
class KernelResultOp(IRDLOperation):
    """Ends a kernel's reference and names the values that the kernel returns."""

    name = "kernel.result"

    values = var_operand_def()

    traits = traits_def(IsTerminator(), HasParent(KernelDefOp))
    assembly_format = "$values attr-dict `:` type($values)"


@irdl_op_definition
class KernelCallOp(IRDLOperation):
    """
    A call of a user's kernel. The op repeats the `rule`, `flops` and `workspace` of its
    `kernel.def`, so that its sharding rule and cost follow from the op alone.
    """

    name = "kernel.call"

    kernel = prop_def(SymbolRefAttr)
    rule = prop_def(StringAttr)
    flops = opt_prop_def(StringAttr)
    workspace = opt_prop_def(StringAttr)
    inputs = var_operand_def()
    outputs = var_result_def()

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = (
        "$kernel `(` $inputs `)` attr-dict `:` functional-type(operands, results)"
    )

    @staticmethod
    def of(kernel: KernelDefOp, inputs: Sequence[SSAValue]) -> KernelCallOp:
        """Returns a call of `kernel` on `inputs`, in the sequential form."""
        properties: dict[str, Attribute] = {
            "kernel": kernel.sym_name,
            "rule": kernel.rule,
        }
        for name in ("flops", "workspace"):
            if name in kernel.properties:
                properties[name] = kernel.properties[name]
        types = [value.type for value in kernel.result.values]
        return KernelCallOp.create(
            operands=list(inputs), result_types=types, properties=properties
        )

    @property
    def symbol(self) -> str:
        """The name of the called kernel."""
        return self.kernel.string_value()

    def verify_(self) -> None:
        module = _module_of(self)
        if module is None:
            return
        found = kernels(module).get(self.symbol)
        if found is None:
            raise VerifyException(
                f"kernel.call of @{self.symbol}, of which there is no kernel.def"
            )
        block = found.reference.block
        counts = len(block.args), len(found.result.values)
        if (len(self.inputs), len(self.outputs)) != counts:
            raise VerifyException(
                f"kernel.call of @{self.symbol}, which takes {counts[0]} values and gives "
                f"{counts[1]}, has {len(self.inputs)} and {len(self.outputs)}"
            )
        for name in ("rule", "flops", "workspace"):
            if self.properties.get(name) != found.properties.get(name):
                raise VerifyException(
                    f"kernel.call of @{self.symbol}: {name} = {self.properties.get(name)}, "
                    f"but its kernel.def says {found.properties.get(name)}"
                )


_NARROW = BFloat16Type | Float16Type


def _option(attr: Attribute) -> int | float | str:
    assert isinstance(attr, Option)
    return attr.data if isinstance(attr, StringAttr) else attr.value.data


def _module_of(op: Operation) -> ModuleOp | None:
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ModuleOp):
        parent = parent.parent_op()
    return parent


def kernels(module: ModuleOp) -> dict[str, KernelDefOp]:
    """Returns the kernels of a program, by name."""
    ops = module.body.block.ops
    return {op.symbol: op for op in ops if isinstance(op, KernelDefOp)}


def kernel_of(module: ModuleOp, call: KernelCallOp) -> KernelDefOp:
    """
    Returns the kernel that `call` calls. Raises VerifyException if the program has no
    such kernel.
    """
    found = kernels(module).get(call.symbol)
    if found is None:
        raise VerifyException(
            f"kernel.call of @{call.symbol}, of which there is no kernel.def"
        )
    return found


KernelDialect = Dialect("kernel", [KernelDefOp, KernelResultOp, KernelCallOp])
