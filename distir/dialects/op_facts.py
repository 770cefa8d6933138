"""Facts of an op, stated on its class, which the layers above the dialects read."""

from __future__ import annotations

from typing import ClassVar


class OpFacts:
    """
    Base of op classes that state facts about themselves, instead of registering a function
    for each with the layer that needs it. An empty text states nothing: a function that is
    registered for the op answers, or a default.
    """

    TORCH: ClassVar[str] = ""
    """
    PyTorch's expression for the op: a template of `distir.lowering.emitter.Call.write`.
    """

    TORCH_MODULE: ClassVar[str] = ""
    """
    The module of `distir/runtime` whose function `TORCH` calls; none if the
    expression is PyTorch's own.
    """

    COST_CLASS: ClassVar[str] = ""
    """
    The class of a profile's curves (`profiles.OP_CLASSES`) that gives the op's time. Without
    one it is that of contractions for ops with floating-point operations, else that of
    elementwise ops.
    """

    IS_ELEMENTWISE: ClassVar[bool] = False
    """Whether each element of the results follows from those of the operands at its place."""

    IS_VIEW: ClassVar[bool] = False
    """Whether the result is the operand's memory, or a part of it, under another shape."""

    IS_COPY: ClassVar[bool] = False
    """Whether the result has the operand's values, in another form or place."""

    IS_FRESH: ClassVar[bool] = False
    """
    Whether all results lie in memory of their own. Other ops may return an operand, or a part of
    one.
    """

    KEEPS_ZEROS: ClassVar[bool] = False
    """Whether the results are zero where the first operand is zero, or sums of such."""

    IS_UPDATE: ClassVar[bool] = False
    """Whether the op updates a parameter by its gradient."""

    FACTORS: ClassVar[str] = ""
    """
    The sharding rule, if shapes and attributes alone decide it: the factors of each dimension
    of operands and results, in the notation of `distir.sharding.factor_text`.
    """
