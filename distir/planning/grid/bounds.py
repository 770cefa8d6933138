"""
Lower bounds of the time and memory of plans, known before any program is distributed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Attribute

from distir.dialects.device import ClusterOp
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.train_ops.optimizers import UpdateOp
from distir.gradients.call_pairs import call_pairs
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.planning.plans.plan import GridPlan, Plan
from distir.program import (
    arguments_of,
    entry_function,
    functions,
    parameters_of_states,
)
from distir.transforms.memory.checkpoint_policies import LayerPolicies
from distir.transforms.memory.checkpointing import checkpoint


@dataclass(frozen=True)
class Bounds:
    """
    Lower bounds for every plan of one program on a number of devices of a cluster.

    - `seconds_at_peak`: for each policy of `activation-checkpoint`, the seconds that
      the contractions of the sequential program take at the peak speed of one device,
      including recomputation. The value is 0 if devices differ, because no bound is
      known then;
    - `devices`: the number of devices;
    - `parameters`, `states`: the bytes of parameters and of states that the program
      keeps from step to step;
    - `gradients`: the bytes of the gradients that the optimizer takes;
    - `memory`: the bytes of the device with the most memory;
    - `seconds_to_host`: the seconds in which the link of one device brings all
      optimizer states of parameters from its host and back; 0 if no device has a link
      to its host.
    """

    seconds_at_peak: Mapping[str, float]
    devices: int
    parameters: int
    states: int
    memory: int
    seconds_to_host: float = 0.0
    gradients: int = 0

    @staticmethod
    def of(
        module: ModuleOp,
        cluster: ClusterOp,
        devices: int,
        policies: Sequence[str] = ("none",),
    ) -> Bounds:
        """
        Computes the bounds for a sequential program on `devices` devices of a cluster.
        The program is simulated under each policy of `activation-checkpoint` in
        `policies`. Raises DistIRError if the program cannot be simulated.
        """
        found = Bounds.of_memory(module, cluster, devices)
        kinds = Hardware.of(cluster).distinct_kinds(range(cluster.size))
        function = entry_function(module)
        work = dict.fromkeys(("none", *policies), 0.0)
        if len(kinds) == 1:
            work = dict.fromkeys(work, sum(simulate(module).seconds_at_peak))
            # Without differentiated functions there is nothing that could be recomputed.
            layers = call_pairs(function, functions(module))
            for policy in {*policies} - {"none"} if layers else ():
                again = module.clone()
                checkpoint(again, policy)
                work[policy] = sum(simulate(again).seconds_at_peak)
        return replace(found, seconds_at_peak=work)

    @staticmethod
    def of_memory(module: ModuleOp, cluster: ClusterOp, devices: int) -> Bounds:
        """
        Computes the bounds without simulation. There are then no bounds of the seconds
        that computation takes (`seconds_at_peak` is empty).
        """
        kinds = Hardware.of(cluster).distinct_kinds(range(cluster.size))
        function = entry_function(module)
        kept, owned = {"parameter": 0, "state": 0}, 0
        of = parameters_of_states(function)
        for argument in arguments_of(function):
            if (
                argument.role in kept
                and argument.value.uses
                and isinstance(type_ := argument.type, TensorType)
            ):
                kept[argument.role] += _bytes_of(type_)
                if argument.index in of:
                    owned += _bytes_of(type_)
        links = [kind.host_bandwidth for kind in kinds if kind.host_bandwidth]
        return Bounds(
            {},
            devices,
            kept["parameter"],
            kept["state"],
            max(kind.memory for kind in kinds),
            2 * owned / max(links) if links else 0.0,
            sum(
                _bytes_of(op.operands[1].type)
                for op in function.body.block.ops
                if isinstance(op, UpdateOp) and op.IS_WHOLE
            ),
        )

    @property
    def seconds(self) -> float:
        """
        A lower bound of the seconds of every plan: the time of a step in which all
        devices compute at their peak speed without a pause.
        """
        return min(self.seconds_at_peak.values()) / self.devices

    def seconds_of(self, plan: Plan) -> float:
        """
        Returns a lower bound of the seconds of `plan`. It counts the plan's
        recomputation and the copies of its optimizer states to and from the host.
        """
        work = self.seconds_at_peak.get(plan.checkpoint)
        if work is None:  # the layers have one of two policies
            of_layers = LayerPolicies.of(plan.checkpoint, "search")
            both = of_layers.policy, of_layers.others
            work = min(self.seconds_at_peak.get(policy, 0.0) for policy in both)
        seconds = work / self.devices
        if isinstance(plan, GridPlan) and plan.offload_states:
            seconds += self.seconds_to_host / _parts_of_states(plan)
        return seconds

    def least_bytes(self, plan: Plan) -> float:
        """
        Returns a lower bound of the bytes that `plan` needs on each device. With several
        micro-batches, the sums of all gradients are in memory at the same time.
        """
        if not isinstance(plan, GridPlan):
            return (self.parameters + self.states) / self.devices
        split = plan.t * plan.p * plan.e
        found = self.parameters / (split * (plan.d if plan.zero == 3 else 1))
        if plan.k > 1:
            scatters = plan.zero >= 2 and not plan.no_sync
            found += self.gradients / (split * (plan.d if scatters else 1))
        if not plan.offload_states:
            found += self.states / _parts_of_states(plan)
        return found

    def may_fit(self, plan: Plan) -> bool:
        """
        Whether the bytes that `plan` keeps from step to step fit into the memory of a
        device.
        """
        return self.least_bytes(plan) <= self.memory


def _bytes_of(type_: Attribute) -> int:
    """Returns the bytes of a tensor of the type `type_`."""
    assert isinstance(type_, TensorType)
    return int(prod(type_.get_shape()) * bytes_per_element(type_.element_type))


def _parts_of_states(plan: GridPlan) -> int:
    """
    Returns the largest number of devices that hold different parts of the optimizer
    states.
    """
    return plan.t * plan.p * plan.e * (plan.d if plan.zero else 1)
