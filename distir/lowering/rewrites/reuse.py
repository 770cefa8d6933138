"""
Makes ops of a rank's program compute into the memory of an operand without a later use:
sums, such as those of gradients over micro-batches, all-reduces, and writes of new
tokens to an inference cache. The simulator counts their memory in the same way
(`OpStep.reusable`).
"""

from __future__ import annotations

from xdsl.dialects.builtin import AnyFloat, ModuleOp, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.collective_ops.per_rank import RecvFromRankOp, SendToRankOp, WaitOp
from distir.dialects.collective_ops.rank_form import RankAllReduceOp
from distir.dialects.dist_attributes import COMPILED
from distir.dialects.onnx_ops.traits import CACHE_WRITES, PERMUTATIONS
from distir.dialects.tensors import element_type, known_shape
from distir.dialects.torch import (
    IN_PLACE,
    AddIntoOp,
    AddLookUpsOp,
    AwaitGradientsOp,
)
from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.offload import OffloadOp
from distir.lowering.rewrites.products import supersede
from distir.lowering.rewrites.sharing import is_fresh
from distir.program import (
    CACHE,
    argument_roles,
    entry_function,
    functions,
    reachable_functions,
    return_op,
    updated_arguments,
)

_OF_OPERANDS = frozenset(
    (
        *PERMUTATIONS,
        *("onnx.Cast", "onnx.ReduceSum"),
        RecvFromRankOp.name,
        WaitOp.name,
        AddIntoOp.name,
    )
)
"""
Ops whose result lies in new memory or in the memory of an operand, with every element
at an address of its own.
"""

Root = SSAValue | tuple[CallOp, "Root"]
"""
The origin of memory in a function: an argument, the result of an op, or a value that a
called function makes.
"""


def reuse_operands(module: ModuleOp) -> None:
    """
    Finds the ops of a per-rank program that can compute into the memory of an operand.
    Marks all-reduces, additions of look-ups and writes to caches, and replaces other
    additions.
    """
    memory = OwnMemory(module)
    for function in memory.functions:
        for op in list(function.body.block.ops):
            is_write = CACHE_WRITES.of(op)
            if is_write or isinstance(op, RankAllReduceOp | AddLookUpsOp):
                if memory.dies(op, op.operands[0]):
                    op.attributes[IN_PLACE] = UnitAttr()
            elif op.name == "onnx.Add" and len(op.operands) == 2:
                _add_in_place(op, memory)


def _add_in_place(op: Operation, memory: OwnMemory) -> None:
    type_ = op.results[0].type
    # A scalar may be a Python number, which has no memory to reuse.
    if not known_shape(op.results[0]):
        return
    if not isinstance(element_type(op.results[0]), AnyFloat):
        return
    x, y = op.operands
    for target, other in ((x, y), (y, x)):
        if target.type == type_ and memory.dies(op, target):
            memory.replace(op, AddIntoOp(target, other))
            return


def _makes_new(op: Operation) -> bool:
    """
    Whether the results of an op lie in memory that no other value uses. This includes
    all-reduces of several processes: if they work in the memory of an operand, the
    operand has no later use.
    """
    if isinstance(op, RankAllReduceOp):
        return len(op.ranks) > 1
    if isinstance(op, TrainOp):
        is_new = op.name.endswith("_grad") or CACHE_WRITES.of(op)
        return is_fresh(op) and is_new
    return is_fresh(op)


class OwnMemory:
    """
    The operands of a per-rank program's ops whose memory is not needed after the op.
    The analysis has three steps:

    1. For each value, the origins of the memory that it may share (`Root`). Callees
       come first, so that a call knows which of its operands a result may share memory
       with.
    2. Memory that persists: constants, values that are being sent, copied to the host
       or given to the caller during the program, and values that unknown ops may keep.
    3. Arguments whose memory no caller needs any more. Callers come first.
    """

    def __init__(self, module: ModuleOp):
        self.functions = reachable_functions(module)  # callees first
        self._known = functions(module)
        self._roots: dict[SSAValue, frozenset[Root]] = {}
        self._lasting: set[Root] = set()
        self._users: dict[Root, list[Operation]] = {}
        self._places: dict[Operation, int] = {}
        self._calls: dict[FuncOp, list[CallOp]] = {f: [] for f in self.functions}
        self._given: set[SSAValue] = set()
        for function in self.functions:
            self._trace(function)
        entry = entry_function(module)
        # The caller goes on with the new content of a cache, in the same memory.
        roles = argument_roles(entry)
        self._given |= {
            entry.args[argument]
            for argument in updated_arguments(entry).values()
            if roles[argument] == CACHE
        }
        for function in reversed(self.functions):
            # Compiled functions and CUDA graphs have their own memory for arguments.
            if function is not entry and COMPILED not in function.attributes:
                self._given |= set(filter(self._is_given, function.args))

    def dies(self, op: Operation, operand: SSAValue) -> bool:
        """
        Whether the memory of `operand` is not needed after `op`, and `op` uses it only
        once.
        """
        roots, place = self._roots[operand], self._places[op]
        if sum(not roots.isdisjoint(self._roots[v]) for v in op.operands) != 1:
            return False
        return all(
            root not in self._lasting
            and (not isinstance(root, BlockArgument) or root in self._given)
            and all(self._places[u] <= place for u in self._users[root])
            for root in roots
        )

    def replace(self, op: Operation, new: Operation) -> None:
        """Replaces `op` by `new`, whose result has the same value."""
        supersede(op, new)
        old, result = op.results[0], new.results[0]
        self._places[new] = self._places.pop(op)
        # The origins of the old result stay those of the new one.
        self._roots[result] = self._roots.pop(old)
        for root in frozenset[Root]().union(*map(self._roots.__getitem__, op.operands)):
            self._users[root] = [new if u is op else u for u in self._users[root]]
        Rewriter.erase_op(op)

    def _trace(self, function: FuncOp) -> None:
        roots = self._roots
        for argument in function.args:
            roots[argument] = frozenset((argument,))
            self._users[argument] = []
        for place, op in enumerate(function.body.block.ops):
            self._places[op] = place
            taken = frozenset[Root]().union(*(roots[v] for v in op.operands))
            for root in taken:
                self._users[root].append(op)
            if isinstance(op, CallOp):
                self._trace_call(op)
            else:
                self._trace_op(op, taken)

    def _trace_op(self, op: Operation, taken: frozenset[Root]) -> None:
        makes_new = _makes_new(op)
        for result in op.results:
            own = frozenset[Root]((result,))
            self._roots[result] = own if makes_new else own | taken
            self._users[result] = []
        if isinstance(op, SendToRankOp | OffloadOp | AwaitGradientsOp):
            self._lasting |= taken
        elif not makes_new and op.name not in _OF_OPERANDS:
            self._lasting |= set(op.results)

    def _trace_call(self, call: CallOp) -> None:
        callee = self._known[call.callee.string_value()]
        self._calls[callee].append(call)
        place_of = {argument: i for i, argument in enumerate(callee.args)}
        for argument, operand in zip(callee.args, call.operands, strict=True):
            if argument in self._lasting:
                self._lasting |= self._roots[operand]
        returned = return_op(callee).operands
        for result, value in zip(call.results, returned, strict=True):
            found: set[Root] = set()
            for root in self._roots[value]:
                if isinstance(root, BlockArgument) and root in place_of:
                    found |= self._roots[call.operands[place_of[root]]]
                else:
                    found.add((call, root))
                    self._users.setdefault((call, root), [])
                    if root in self._lasting:
                        self._lasting.add((call, root))
            self._roots[result] = frozenset(found)

    def _is_given(self, argument: BlockArgument) -> bool:
        """
        Whether no caller of the function needs the memory of `argument` after its call.
        """
        function = argument.block.parent_op()
        assert isinstance(function, FuncOp)
        return all(
            self.dies(call, call.operands[argument.index])
            for call in self._calls[function]
        )
