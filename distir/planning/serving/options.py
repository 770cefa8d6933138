"""
The options for plans of services, of the command `serve-plan` and the function
`serve_plan`.
"""

from __future__ import annotations

from dataclasses import dataclass

from distir.frontends.options import ServingOptions
from distir.hardware.options import ProfileOptions
from distir.interpreters.simulator.options import SimulationOptions
from distir.options import option, same_option

PLACEMENTS = ("both", "aggregated", "disaggregated")
"""
The placements: each replica both reads prompts and generates (aggregated), each does
only one of the two (disaggregated), or the better one is chosen (both).
"""

_OF_REPLICA = 256


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Options for the requests to a service, its limits, and its replicas."""

    prompt: int | None = option(
        None,
        "tokens of each prompt",
        metavar="N",
    )
    generate: int | None = option(
        None,
        "tokens to generate for each prompt",
        metavar="N",
    )
    trace: str | None = same_option(
        SimulationOptions,
        "trace",
        help="requests from a CSV file with the columns arrival_s, prompt and generate, "
        "instead of --prompt, --generate and --rate",
        metavar="requests.csv",
        kind="input_file",
    )
    rate: float | None = option(
        None,
        "requests per second, such as 12/s, at random times (a Poisson process); without "
        "it, only the highest rates are found",
        metavar="N/s",
        kind="requests_per_second",
    )
    ttft: float | None = option(
        None,
        "limit of the time to the first token, such as 1s or 400ms",
        metavar="TIME",
        kind="duration",
    )
    tpot: float | None = option(
        None,
        "limit of the time per token behind the first, such as 40ms",
        metavar="TIME",
        kind="duration",
    )
    percentile: int = option(
        99,
        "the percentage of requests that must be within the limits (default 99)",
        choices=(50, 90, 99),
    )
    placement: str = option(
        "both",
        "aggregated: each replica reads prompts and generates; disaggregated: some read "
        "prompts and send the caches to others, which generate; both (default): whichever "
        "is better",
        choices=PLACEMENTS,
    )
    prefix_hits: float = option(
        0.0,
        "the share of a prompt's tokens whose keys and values a prefix cache holds already "
        "(default 0)",
        metavar="SHARE",
        kind="share",
    )
    max_sequences: int = option(
        _OF_REPLICA,
        f"most sequences in progress on a replica, for each of -e devices (default {_OF_REPLICA})",
        metavar="N",
    )
    batched_tokens: tuple[int, ...] = option(
        (512, 2048, 8192),
        "most tokens in a step, for each of -e devices; longer prompts are read in chunks. "
        "Several values are tried (default 512,2048,8192)",
        metavar="N,...",
        several=True,
    )
    memory_share: float = option(
        0.9,
        "the share of the memory, besides that of parameters and steps, that caches take "
        "(default 0.9)",
        metavar="SHARE",
        kind="share",
    )
    admission: str = option(
        "preempt",
        "when a request is admitted: as soon as its prompt fits, and the last one is "
        "preempted where the cache is full later (preempt, default), or when all of its "
        "tokens will fit (reserve)",
        choices=("preempt", "reserve"),
    )
    requests: int = option(
        400,
        "number of simulated requests (default 400)",
        metavar="N",
    )
    seed: int = option(
        0,
        "seed of the arrivals (default 0)",
        metavar="N",
        kind="non_negative_integer",
    )
    weights_dtype: str | None = same_option(
        ServingOptions,
        "weights_dtype",
        help="price the matrices of layers in 8 or 4 bits (default: the type that they have "
        "in the program)",
    )
    cache_dtype: str | None = same_option(
        ServingOptions,
        "cache_dtype",
        help="price caches in 8 bits (default: the type that they have in the program)",
    )
    expert_imbalance: float | None = same_option(ProfileOptions, "expert_imbalance")
    profile: tuple[str, ...] = same_option(
        ProfileOptions,
        "profile",
        help="what the devices reach in practice: a built-in profile, a file that `distir "
        "calibrate` wrote, or none for the data sheets (default: the profile that the "
        "cluster names with -serving behind it, else that profile)",
    )


@dataclass(frozen=True, kw_only=True)
class ServiceFiles:
    """Options for the files to which a service plan is written."""

    json: str | None = same_option(
        SimulationOptions,
        "json",
        help="write all that was found to a file, which `distir export --to vllm` and "
        "others read",
        metavar="plan.json",
    )
    html: str | None = same_option(
        SimulationOptions,
        "html",
        help="write a report with plots to open in a browser; one file that needs no "
        "network",
    )
