"""Simulates programs of a few ops, given as text."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from distir.dialects import get_all_dialects
from distir.dialects.device import ClusterOp
from distir.interpreters.simulator import simulate


def seconds(text: str, on: ClusterOp, profile: str) -> float:
    """Returns the simulated seconds of a program's text."""
    context = Context()
    for dialect in (Builtin, Func):
        context.load_dialect(dialect)
    for name, dialect in get_all_dialects().items():
        context.register_dialect(name, dialect)
    module = Parser(context, text).parse_module()
    return simulate(module, on, profiles=(profile,)).step_time_s
