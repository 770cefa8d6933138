"""Facts that op classes state about their ops, for the layers above the dialects."""

from __future__ import annotations

from typing import ClassVar


class OpFacts:
    """
    Base of op classes that state facts about their ops, so that layers above the
    dialects need not register a function for each op. If a fact is an empty text, the
    layer that needs the fact uses a function registered for the op, or a default.
    """

    TORCH: ClassVar[str] = ""
    """
    PyTorch's expression for the op: a template of `distir.lowering.emitter.Call.write`.
    """

    TORCH_MODULE: ClassVar[str] = ""
    """
    The module of `distir/runtime` that defines the function `TORCH` calls; empty if the
    expression needs PyTorch only.
    """

    COST_CLASS: ClassVar[str] = ""
    """
    The class of a profile's curves (`profiles.OP_CLASSES`) that gives the op's time. By
    default, ops with floating-point operations have the class of contractions, and
    other ops the class of elementwise ops.
    """

    COMPUTES_IN: ClassVar[str] = ""
    """
    The operand in whose element type the op computes. If empty, the type follows from
    all operands (`op_costs.computing_type`).
    """

    IS_ELEMENTWISE: ClassVar[bool] = False
    """
    Whether each result element depends only on operand elements at the same position.
    """

    IS_VIEW: ClassVar[bool] = False
    """
    Whether the result shares the operand's memory, or part of it, under another shape.
    """

    IS_COPY: ClassVar[bool] = False
    """Whether the result holds the operand's values, in another form or order."""

    IS_FRESH: ClassVar[bool] = False
    """
    Whether each result has memory of its own. Results of other ops may share memory
    with an operand.
    """

    KEEPS_ZEROS: ClassVar[bool] = False
    """
    Whether a result element is zero if it comes from zeros of the first operand only:
    from one zero, or from a sum of zeros.
    """

    IS_UPDATE: ClassVar[bool] = False
    """Whether the op updates a parameter with its gradient."""

    IS_CACHE_WRITE: ClassVar[bool] = False
    """
    Whether the op replaces a part of its first operand, and can do so in the operand's
    own memory if nothing else needs it.
    """

    FACTORS: ClassVar[str] = ""
    """
    The sharding rule, for ops whose rule follows from shapes and attributes alone: the
    factors of each dimension of operands and results, in the notation of
    `distir.sharding.factor_text`. Empty if the op has no such rule.
    """
