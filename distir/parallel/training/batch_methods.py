"""
Methods of a parallel module for values of the batch. Each rank has a part of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, DistributedSampler

from distir.gradients.options import IGNORED_LABEL
from distir.parallel.scripts.like_its_source import LikeItsSource
from distir.parallel.training.sharded_cross_entropy import cross_entropy
from distir.parallel.training.whole_batch import mean_of_parts, whole_batch


class BatchMethods(LikeItsSource):
    """
    A module on several ranks. Each rank must get part `data_rank` of `data_ranks` equal
    parts of the batch.
    """

    data_rank: int
    data_ranks: int

    def metrics(self) -> dict[str, float]:
        """
        Returns, by name, the numbers that the last calls computed, for a logger. The
        numbers are the same on all ranks. Leaves out numbers that have not been
        computed yet. Waits for the devices.

        - `loss`: the loss of the whole batch in the last training step, if the program
          computes the loss;
        - `validation_loss`: the loss of the whole batch in the last call in evaluation
          mode;
        - `grad_norm`: the norm of the gradients before clipping.
        """
        return {name: float(value) for name, value in self._measured().items()}

    def _measured(self) -> dict[str, torch.Tensor]:
        """
        The tensors from which `metrics` returns numbers, by name. Each call adds its
        tensors.
        """
        return self.__dict__.setdefault("_last_values", {})

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool = True, seed: int = 0
    ) -> DistributedSampler[Any]:
        """
        Returns a sampler for a `DataLoader`. It selects the samples of `dataset` for
        this rank's part of the batch.
        """
        return DistributedSampler(
            dataset, self.data_ranks, self.data_rank, shuffle=shuffle, seed=seed
        )

    def whole_batch(self, own: torch.Tensor) -> torch.Tensor:
        """
        Returns the rows of the whole batch, such as the rows of an output. `own` has
        the rows of this rank's part. The call takes part in autograd: if every rank
        computes a loss of the whole batch, training gives the same result as on one
        process. Every rank must call this method. Raises DistIRError for a scalar.
        """
        return whole_batch(self._program, own)

    def mean_of_parts(self, value: torch.Tensor) -> torch.Tensor:
        """
        Returns the mean of `value` over the parts of the batch, without gradients. Each
        rank passes the value of its own part, such as its loss. Every rank must call
        this method.
        """
        return mean_of_parts(self._program, value)

    def cross_entropy(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        ignore_index: int = IGNORED_LABEL,
    ) -> torch.Tensor:
        """
        Returns the mean cross-entropy of this rank's part of the batch, as a scalar.
        `logits` [..., classes] are an output of this module. `labels` [...] are
        classes; the mean leaves out rows whose label is `ignore_index`. If the classes
        of the logits are split over ranks (`sharded_outputs=True`), the logits are not
        gathered. Every rank must call this method. Raises DistIRError if the shapes do
        not fit.
        """
        return cross_entropy(logits, labels, ignore_index)
