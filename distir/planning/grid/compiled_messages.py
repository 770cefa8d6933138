"""
Buckets of collectives in functions that are compiled for the simulator without becoming IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Block

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import BUCKET, layout_of
from distir.interpreters.simulator.engine.compiled import (
    NOWHERE,
    CommunicationStep,
    CompiledStep,
)
from distir.interpreters.simulator.engine.device_map import DeviceMap
from distir.interpreters.simulator.engine.message_buffers import MessageBuffers
from distir.interpreters.simulator.engine.transfers import transfers_of
from distir.transforms.bucketing import CollectiveBucketer


class Messages:
    """Combines steps into messages, as `bucketer` does with the ops of a function."""

    def __init__(self, bucketer: CollectiveBucketer, device_map: DeviceMap):
        self.bucketer = bucketer
        self.device_map = device_map
        self._buffers = MessageBuffers(device_map)

    def join(self, steps: Sequence[CompiledStep]) -> list[CompiledStep]:
        """
        Returns the steps in their new order; the steps of one message take the time of one
        transfer.
        """
        found = self.bucketer.buckets(
            [step.op for step in steps],
            [step.operands for step in steps],
            [step.defined for step in steps],
        )
        order: list[Sequence[CompiledStep]] = [[step] for step in steps]
        for bucket in found:
            if len(bucket.members) == 1:
                continue
            members = [steps[i] for i in bucket.members]
            for i in bucket.members:
                order[i] = ()
            order[bucket.place] = self._one_message(members)
        return [step for group in order for step in group]

    def _one_message(self, steps: Sequence[CompiledStep]) -> list[CompiledStep]:
        """
        Returns these steps with what each occupies when all travel in one message; that
        depends on their types.
        """
        block = Block(arg_types=[step.op.operands[0].type for step in steps])
        for step, source in zip(steps, block.args, strict=True):
            # Several steps may be of the same op.
            op = step.op
            block.add_op(
                op.create(
                    operands=[source],
                    result_types=[op.results[0].type],
                    properties=op.properties,
                    attributes={**op.attributes, BUCKET: IntegerAttr(0, i64)},
                )
            )
        found: list[CompiledStep] = []
        for step, op in zip(steps, block.ops, strict=True):
            assert isinstance(step, CommunicationStep)  # as a bucket has collectives
            own = transfers_of(op, self.device_map)
            assert own is not None and isinstance(op, CollectiveOp)
            size = self._buffers.bytes_of(op)
            layout = layout_of(op.results[0])
            mesh = layout.mesh if layout is not None else None
            found.append(
                replace(
                    step,
                    transfers=own,
                    issue=max(t.issue for t in own),
                    positions=step.results[0].positions if size else NOWHERE,
                    workspace=self.device_map.allocated(size, mesh) if size else 0,
                    reusable=(),
                )
            )
        return found
