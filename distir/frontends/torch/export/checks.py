"""Removes what a module checks while it runs, which programs of ONNX cannot do."""

from __future__ import annotations

from typing import Any

import torch

_aten: Any = torch.ops.aten
_CHECKS: tuple[Any, ...] = (
    _aten._assert_scalar.default,
    _aten._assert_async.default,
    _aten._assert_async.msg,
)
_READS: tuple[Any, ...] = (
    _aten.item.default,
    _aten._local_scalar_dense.default,
    _aten._is_all_true.default,
)
"""
Operations that read the value of a tensor: they are kept where nothing uses them, because
reading waits for a device.
"""


def remove_checks(program: torch.export.ExportedProgram) -> None:
    """
    Removes checks of values (`torch._check_tensor_all`, `torch._assert_async`) from a
    program, in place, and what is computed for them alone.
    """
    graph = program.graph
    checks = [n for n in graph.nodes if n.target in _CHECKS]
    if not checks:
        return
    for check in checks:
        graph.erase_node(check)
    for node in reversed(list(graph.nodes)):
        is_symbolic = isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool)
        if not node.users and (node.target in _READS or is_symbolic):
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
