"""Methods of a parallel module for values of the batch, of which each rank has a part."""

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
    A module of which each rank is given part `data_rank` of `data_ranks` equal parts of the
    batch.
    """

    data_rank: int
    data_ranks: int

    def metrics(self) -> dict[str, float]:
        """
        Returns the numbers of the last calls by name, for a logger, the same on all ranks:
        `loss` of the last training step and `validation_loss` of the last call in
        evaluation mode, each of the whole batch, if the program computes it, and
        `grad_norm`, the norm of the gradients before they were clipped. What has not been
        computed yet is left out. Waits for the devices.
        """
        return {name: float(value) for name, value in self._measured().items()}

    def _measured(self) -> dict[str, torch.Tensor]:
        """The tensors behind `metrics`, to which calls add theirs."""
        return self.__dict__.setdefault("_last_values", {})

    def sampler(
        self, dataset: Dataset[Any], *, shuffle: bool = True, seed: int = 0
    ) -> DistributedSampler[Any]:
        """
        Returns a sampler for a `DataLoader`. It selects the samples of `dataset` that
        this rank must be given.
        """
        return DistributedSampler(
            dataset, self.data_ranks, self.data_rank, shuffle=shuffle, seed=seed
        )

    def whole_batch(self, own: torch.Tensor) -> torch.Tensor:
        """
        Returns the rows of the whole batch, of which `own` are those of this rank's part,
        such as an output. It takes part in autograd: a loss of the whole batch, which every
        rank computes, trains as it does on one process. Every rank must call this. Raises
        DistIRError for a scalar.
        """
        return whole_batch(self._program, own)

    def mean_of_parts(self, value: torch.Tensor) -> torch.Tensor:
        """
        Returns the mean over the parts of the batch of a value that each rank has of its
        part, such as its loss, without gradients. Every rank must call this.
        """
        return mean_of_parts(self._program, value)

    def cross_entropy(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        ignore_index: int = IGNORED_LABEL,
    ) -> torch.Tensor:
        """
        Returns the mean cross-entropy of this rank's part of the batch: of logits [...,
        classes], an output of this module, and classes [...], of which those that equal
        `ignore_index` do not count. Logits whose classes are split over ranks
        (`sharded_outputs=True`) are not brought together. Every rank must call this. Raises
        DistIRError if the shapes do not fit.
        """
        return cross_entropy(logits, labels, ignore_index)
