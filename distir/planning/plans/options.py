"""The options of searches, shared by passes, commands and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distir.errors import DistIRError, one_of
from distir.hardware.options import ProfileOptions
from distir.options import SWITCH, option, options_of, same_option, values_of
from distir.pipelining.options import PipelineOptions
from distir.pipelining.registry import SCHEDULES
from distir.planning.distribution.options import (
    CACHE_SPLITS,
    EXPERT_AXES,
    DistributionOptions,
)


def switched(option: str, names: Sequence[str]) -> tuple[bool, ...]:
    """
    Returns a boolean for each of `names`, the values `on` or `off` that a user gave for
    the option `option`. Raises DistIRError for any other value; the message names the
    option.
    """
    unknown = [name for name in names if name not in SWITCH]
    if unknown:
        raise DistIRError(
            f"search: {option} cannot be {unknown[0]!r}; choose from {', '.join(SWITCH)}"
        )
    return tuple(SWITCH[name] for name in names)


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ProfileOptions):
    """
    The choices of a search over plans. If an option for several values has no value,
    the search chooses the values.
    """

    world_size: int | None = option(
        None,
        "devices that each configuration uses: all r x d x e x c x t x p = N (default: "
        "those of --devices, or all of the cluster)",
        metavar="N",
    )
    micro_batches: tuple[int, ...] = values_of(
        PipelineOptions,
        "k",
        "numbers of micro-batches of a pipeline (default 2,4,...,128); if given, a "
        "training step accumulates gradients on a single pipeline rank too",
        metavar="K,...",
    )
    zero: tuple[int, ...] = values_of(
        DistributionOptions,
        "zero",
        "ZeRO stages of a training step (default 0; with --auto all)",
        metavar="STAGE,...",
    )
    checkpoint: tuple[str, ...] = values_of(
        DistributionOptions,
        "checkpoint",
        "what a training step recomputes: none, full, whole, selective, products, in "
        "a part of its layers full:0.5, in so many of each run of layers full:4/6+0/6, or by ops, "
        "save:onnx.MatMul+train.attention (default none; with --auto none, selective, products "
        "and full, and mixtures of two of the given ones where memory binds)",
        metavar="POLICY,...",
    )
    schedules: tuple[str, ...] = values_of(
        PipelineOptions,
        "schedule",
        "pipeline schedules (default: 1f1b, or forward for inference)",
        metavar="NAME,...",
    )
    c: tuple[int, ...] = values_of(
        DistributionOptions,
        "c",
        "context-parallel degrees, for long sequences, with keys that are gathered or go "
        "around (default 1; with --auto all powers of two where sequences are long)",
        metavar="C,...",
    )
    e: tuple[int, ...] = values_of(
        DistributionOptions,
        "e",
        "expert-parallel degrees, for mixtures of experts (default 1; with --auto all that "
        "divide the number of experts)",
        metavar="E,...",
    )
    expert_axes: tuple[str, ...] = values_of(
        DistributionOptions,
        "expert_axes",
        "the axes over which experts are dealt out: e, or also -c and -t devices, ec, et "
        "(default e; with --auto all)",
        metavar="AXES,...",
    )
    cache_split: tuple[str, ...] = values_of(
        DistributionOptions,
        "cache_split",
        "what the -t devices of an inference program split of its caches: heads alone, or "
        "also positions, where they outnumber the heads (default heads)",
        metavar="KIND,...",
    )
    r: tuple[int, ...] = values_of(
        DistributionOptions,
        "r",
        "numbers of groups of devices that each hold all that ZeRO splits over -d, as nodes "
        "may (default 1; with --auto all)",
        metavar="R,...",
    )
    no_sync: tuple[str, ...] = values_of(
        DistributionOptions,
        "no_sync",
        "whether ZeRO 3 adds up whole gradients over micro-batches, and reduces them once: "
        "off, on or both (default off; with --auto both)",
    )
    offload_states: tuple[str, ...] = values_of(
        DistributionOptions,
        "offload_states",
        "whether the optimizer's states are in the host's memory: off, on or both (default "
        "off; with --auto both, on where a step does not fit otherwise)",
    )
    overlap: tuple[str, ...] = values_of(
        DistributionOptions,
        "overlap",
        "whether communication overlaps computation: off, on or both (default off; "
        "with --auto both)",
    )
    buckets: bool = same_option(DistributionOptions, "buckets")
    jobs: int = option(
        0,
        "processes (default: one for each core)",
        metavar="N",
    )

    def check(self) -> None:
        """
        Raises DistIRError for unknown schedules, checkpoint policies and ZeRO stages,
        and for degrees below 1.
        """
        from distir.transforms.memory.checkpoint_policies import LayerPolicies

        for name in self.schedules:
            one_of("pipeline schedule", name, SCHEDULES)
        for name in self.checkpoint:
            LayerPolicies.of(name, "search")
        degrees = {
            "the degree of context parallelism c": self.c,
            "the degree of expert parallelism e": self.e,
            "the number of groups with copies r": self.r,
        }
        for what, values in degrees.items():
            for degree in values:
                if degree < 1:
                    raise DistIRError(f"{what}={degree} must be positive")
        for axes in self.expert_axes:
            one_of("set of axes of experts", axes, EXPERT_AXES)
        for kind in self.cache_split:
            one_of("split of caches", kind, CACHE_SPLITS)
        for stage in self.zero:
            if stage not in (0, 1, 2, 3):
                raise DistIRError(
                    f"there is no ZeRO stage {stage!r}; choose from 0 to 3"
                )

    def choices(self) -> dict[str, Any]:
        """
        Returns, by name, the values to try for each option that was given, and whether
        plans use buckets. Raises DistIRError if an on/off option has a value that is
        not `on` or `off`.
        """
        found: dict[str, Any] = {"buckets": self.buckets}
        for each in options_of(SearchOptions):
            values = getattr(self, each.name)
            if each.declared.several and values:
                is_switch = each.declared.choices == tuple(SWITCH)
                found[each.name] = switched(each.name, values) if is_switch else values
        return found


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """
    Options for the results of a search: the number of best results to list, and the
    file that keeps all results.
    """

    top: int = option(
        10,
        "how many of the best to list (default 10)",
        metavar="N",
    )
    resume: str | None = option(
        None,
        "write every result to this file at once, and skip those in it already",
        metavar="FILE",
        kind="path",
    )


@dataclass(frozen=True, kw_only=True)
class RequestOptions:
    """Options for a search: requests that every plan must keep, and a time limit."""

    shard: tuple[str, ...] = same_option(
        DistributionOptions,
        "shard",
        help="plans must split dimension DIM of argument NAME over axis d or t; may be "
        "repeated",
    )
    whole: tuple[str, ...] = same_option(
        DistributionOptions,
        "whole",
        help="arguments that no plan may split; names may hold *",
        metavar="NAME,...",
        several=True,
    )
    time_limit: float | None = option(
        None,
        "end then, with the best plan found",
        metavar="SECONDS",
    )
