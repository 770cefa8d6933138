"""PyTorch's own pipeline schedules, built without processes or modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules as torch_schedules

from distir.pipelining import Action, Phase, PipelineSchedule

MULTI_STAGE: dict[str, Any] = {
    "interleaved-1f1b": torch_schedules.ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": torch_schedules.ScheduleInterleavedZeroBubble,
    "zbv": torch_schedules.ScheduleZBVZeroBubble,
    "dualpipev": torch_schedules.ScheduleDualPipeV,
}

SINGLE_STAGE: dict[str, Any] = {
    "gpipe": torch_schedules.ScheduleGPipe,
    "1f1b": torch_schedules.Schedule1F1B,
    "forward": torch_schedules._ScheduleForwardOnly,
}


def _stage(rank: int, ranks: int, stages: int) -> Any:
    """Returns as much of a stage as the schedules look at when they are built."""
    return SimpleNamespace(
        num_stages=stages,
        stage_index=rank,
        group_size=ranks,
        group_rank=rank,
        submod=None,
        is_first=False,
        is_last=False,
    )


def multi_stage(name: str, ranks: int, micro_batches: int, chunks: int) -> Any:
    """Returns an object of PyTorch's class for a schedule with several stages per rank."""
    stages = [_stage(0, ranks, ranks * chunks) for _ in range(chunks)]
    return MULTI_STAGE[name](stages, micro_batches, loss_fn=lambda y, t: y)


def runtime(ranks: int, micro_batches: int, chunks: int) -> Any:
    """Returns PyTorch's runtime for schedules that come from a file."""
    stages = [_stage(0, ranks, ranks * chunks) for _ in range(chunks)]
    return torch_schedules._PipelineScheduleRuntime(stages, micro_batches)


def run_dry(theirs: Any) -> None:
    """
    Runs PyTorch's dry run of a schedule with its sends and receives, which raises if they
    would deadlock. It does not know the actions for FSDP and the reduction of gradients.
    """
    known = {"F", "B", "I", "W", "SEND_F", "RECV_F", "SEND_B", "RECV_B"}
    torch_schedules._simulate_comms_compute(
        {
            rank: [a for a in row if a.computation_type.value in known]
            for rank, row in theirs.pipeline_order_with_comms.items()
        },
        lambda stage: theirs.stage_index_to_group_rank[stage],
        theirs._num_stages,
    )


def as_schedule(order: dict[int, list[Any]]) -> PipelineSchedule:
    """
    Converts PyTorch's actions to ours: without idle cells and reductions of gradients, and
    with overlapped pairs one after the other, as PyTorch's runtime runs them by default.
    """
    phases = {phase.value for phase in Phase}
    return PipelineSchedule.of(
        [
            [
                Action(part.stage_index, Phase(part.computation_type.value), batch)
                for action in order[rank]
                if action is not None
                for part in action.sub_actions or [action]
                if part.computation_type.value in phases
                and (batch := part.microbatch_index) is not None
            ]
            for rank in sorted(order)
        ]
    )


class RecordingStage:
    """A stage that records what a schedule makes it compute; nothing is sent."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.stage_index, self.num_stages = rank, ranks
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        self.actions: list[Action] = []

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.actions.append(Action(self.stage_index, Phase.FORWARD, micro_batch))

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        self.actions.append(Action(self.stage_index, Phase.BACKWARD, micro_batch))

    def perform_reduce_grad(self, _: int) -> None:
        """Does nothing: these tests ignore the reduction of gradients."""

    def _no_operations(self, _: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = _no_operations
    get_bwd_recv_ops = get_bwd_send_ops = _no_operations


def run_single_stage(name: str, ranks: int, micro_batches: int) -> PipelineSchedule:
    """
    Returns what each rank computes when PyTorch runs a schedule with one stage per rank.
    """
    rows: list[list[Action]] = []
    for rank in range(ranks):
        stage = RecordingStage(rank, ranks)
        schedule = SINGLE_STAGE[name](stage, micro_batches)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches([()] * micro_batches, [{}] * micro_batches)
        rows.append(stage.actions)
    return PipelineSchedule.of(rows)
