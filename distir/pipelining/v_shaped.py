"""
The schedules whose stages lie on the ranks in the shape of a V: with P ranks, rank r
has stages r and 2 P - 1 - r. The loss is thus on the same rank as the input.

ZB-V and DualPipeV are generated for at least as many micro-batches as fill the pipeline,
and then surplus micro-batches are left out. This is possible because no action of a
micro-batch waits for an action of another micro-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from distir.pipelining.actions import Action, Phase, PipelineSchedule


def zbv(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    Returns the ZB-V schedule (Qi et al. 2024, section 6). With P ranks and F, I and W
    of equal length, the only idle time is the P - 1 steps at the start. Each rank
    stores 2 P activations of one stage for one micro-batch: as much memory as on the
    first rank of 1F1B.
    """
    filled = max(micro_batches, 2 * ranks - 1)

    def rank_actions(rank: int) -> _RankActions:
        after = ranks - rank
        actions = _RankActions((rank, 2 * ranks - 1 - rank))
        actions.repeat(2 * after - 1, "F0")
        actions.repeat(rank, "F1 F0")
        actions.repeat(after, "F1 I1 W1")
        actions.repeat(filled - 2 * ranks + rank + 1, "F0 I0 W0 F1 I1 W1")
        actions.repeat(after - 1, "I0 W0 F1 I1 W1")
        actions.repeat(rank, "I0 I1")
        actions.repeat(after, "I0 W0")
        actions.repeat(rank, "W1")
        actions.repeat(rank, "W0")
        return actions

    return _schedule(rank_actions, ranks, micro_batches)


def dualpipev(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    Returns the DualPipeV schedule (DeepSeek-AI 2024: DualPipe, cut in half). It is like
    ZB-V, but most backward passes are whole. Each whole backward pass forms a pair with
    a forward pass of the rank's other stage. The two may overlap in time; in the
    schedule the forward pass comes first.
    """
    filled = max(micro_batches, 2 * ranks)

    def rank_actions(rank: int) -> _RankActions:
        after = ranks - 1 - rank
        actions = _RankActions((rank, 2 * ranks - 1 - rank))
        actions.repeat(2 * after, "F0")
        actions.repeat(rank + 1, "F0 F1")
        actions.repeat(after, "I1 W F1")
        actions.repeat(filled - 2 * ranks + rank + 1, "F0 B1 F1 B0")
        actions.repeat(after, "B1 F1 B0")
        actions.repeat((rank + 1) // 2, "B1 B0")
        actions.repeat((rank + 1) % 2, "B1 I0")
        actions.repeat((rank + 1) // 2, "I1 I0")
        actions.repeat(after, "W I0")
        actions.repeat(rank + 1, "W")
        return actions

    return _schedule(rank_actions, ranks, micro_batches)


def dualpipev_whole(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    Returns DualPipeV with whole backward passes, as DualPipe computes them without its
    option for zero bubbles. No weight gradients wait, so that the activations that they
    need are freed at once. With full recomputation these are most of the memory.
    """
    split = dualpipev(ranks, micro_batches, chunks)
    phases = {Phase.BACKWARD_INPUT: Phase.BACKWARD}
    return PipelineSchedule.of(
        [
            [
                action._replace(phase=phases.get(action.phase, action.phase))
                for action in actions
                if action.phase is not Phase.BACKWARD_WEIGHT
            ]
            for actions in split.actions
        ]
    )


def _schedule(
    rank_actions: Callable[[int], _RankActions], ranks: int, micro_batches: int
) -> PipelineSchedule:
    return PipelineSchedule.of(
        [
            [a for a in rank_actions(rank).actions if a.micro_batch < micro_batches]
            for rank in range(ranks)
        ]
    )


class _RankActions:
    """
    The actions of a rank, built from repeated steps. A step is a phase and the index of
    one of the rank's two stages, such as `F0`; the step works on the stage's next
    micro-batch. `W` without an index computes the weight gradients that have waited
    longest, of either stage.
    """

    def __init__(self, stages: tuple[int, int]) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        self._next: Counter[str] = Counter()
        self._waiting: list[Action] = []

    def repeat(self, times: int, steps: str) -> None:
        """Appends the steps `steps` to the rank's actions, `times` times in a row."""
        for step in steps.split() * times:
            self._add(step)

    def _add(self, step: str) -> None:
        phase = Phase(step[0])
        if phase is Phase.BACKWARD_WEIGHT:
            stages = [self._stages[int(step[1])]] if step[1:] else self._stages
            action = next(w for w in self._waiting if w.stage in stages)
            self._waiting.remove(action)
            self.actions.append(action)
            return
        stage = self._stages[int(step[1])]
        counter = f"{stage}" + ("F" if phase is Phase.FORWARD else "B")
        batch = self._next[counter]
        self._next[counter] += 1
        self.actions.append(Action(stage, phase, batch))
        if phase is Phase.BACKWARD_INPUT:
            self._waiting.append(Action(stage, Phase.BACKWARD_WEIGHT, batch))
