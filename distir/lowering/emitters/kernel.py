"""
Emitters of calls of users' kernels. The generated package looks up the functions of the
kernels when it runs.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.kernel import KernelCallOp, kernel_of
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("kernel.call")
def kernel_call(call: Call) -> str:
    """Returns a call of the kernel's function, or of its gradient."""
    op = call.op
    assert isinstance(op, KernelCallOp)
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, ModuleOp):
        parent = parent.parent_op()
    assert parent is not None
    kernel = kernel_of(parent, op)
    module, _, name = kernel.implementation.data.partition(":")
    types = ", ".join(
        f"({tuple(call.result_shape(i) or ())!r}, {call.result_dtype(i)})"
        for i in range(len(op.results))
    )
    arguments = [repr(module), repr(name)]
    function = "call"
    if kernel.wrt is not None:
        function = "backward" if kernel.autograd is None else "autograd"
        arguments.append(repr(tuple(kernel.wrt.get_values())))
    arguments += [f"[{types}]", *call.operands()]
    arguments += [f"{name}={value!r}" for name, value in kernel.named_options.items()]
    return f"{call.helper('kernels')}.{function}({', '.join(arguments)})"
