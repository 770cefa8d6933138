"""The requests to a service: at random times, all at once, or from a trace file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from random import Random

from distir.errors import DistIRError


@dataclass(frozen=True)
class TokenRequest:
    """
    A request: the second of its arrival, the number of tokens of its prompt, and the
    number of tokens to generate. The keys and values of `cached` tokens of the prompt
    are already known and need no computation, but take room in the cache.
    """

    arrival_s: float
    prompt: int
    generate: int
    cached: int = 0

    @property
    def tokens(self) -> int:
        """The number of tokens in the cache when the request is finished."""
        return self.prompt + self.generate


@dataclass(frozen=True)
class Workload:
    """
    Requests with a mean rate of 1 request/s. `at_rate` scales the arrival times to
    another rate, so that the random pattern of arrivals is the same at all rates.
    """

    requests: Sequence[TokenRequest]

    @property
    def mean_generated(self) -> float:
        """The mean number of generated tokens of a request."""
        return sum(r.generate for r in self.requests) / len(self.requests)

    @property
    def mean_prompt(self) -> float:
        """The mean number of tokens of a prompt."""
        return sum(r.prompt for r in self.requests) / len(self.requests)

    @property
    def longest(self) -> int:
        """The largest number of tokens that one request has in the cache."""
        return max(r.tokens for r in self.requests)

    def at_rate(self, rate: float) -> list[TokenRequest]:
        """
        Returns the requests with arrival times scaled to `rate` requests/s. At an
        infinite rate all requests arrive at second 0.
        """
        return [
            TokenRequest(
                r.arrival_s / rate if rate < inf else 0.0,
                r.prompt,
                r.generate,
                r.cached,
            )
            for r in self.requests
        ]


def poisson_workload(
    count: int, prompt: int, generate: int, *, prefix_hits: float = 0.0, seed: int = 0
) -> Workload:
    """
    Returns `count` requests with a prompt of `prompt` tokens each and `generate` tokens
    to generate. The arrivals are a Poisson process with a mean rate of 1 request/s.
    `prefix_hits` is the share of a prompt's tokens that a prefix cache holds.
    """
    random = Random(seed)
    now, found = 0.0, list[TokenRequest]()
    for _ in range(count):
        now += random.expovariate(1.0)
        found.append(TokenRequest(now, prompt, generate, _cached(prompt, prefix_hits)))
    return Workload(found)


def _cached(prompt: int, prefix_hits: float) -> int:
    """
    Returns the number of cached tokens of a prompt. At least one token is not cached.
    """
    return min(round(prefix_hits * prompt), prompt - 1)


COLUMNS = ("arrival_s", "prompt", "generate")
"""The columns of a trace file."""


def read_trace(path: Path, prefix_hits: float = 0.0) -> tuple[Workload, float]:
    """
    Reads a CSV file with the columns `arrival_s` (seconds), `prompt` and `generate`
    (numbers of tokens). Returns the file's requests, scaled to the rate 1 request/s,
    and the rate in the file, in requests/s. Raises DistIRError if the file cannot be
    read, if a row is wrong, or if all requests arrive at the same second.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DistIRError(f"cannot read the trace {path}: {error}") from error
    if not rows or any(name not in rows[0] for name in COLUMNS):
        raise DistIRError(
            f"the trace {path} needs a first line {','.join(COLUMNS)} and a line for each "
            f"request below it, such as 0.25,2000,300"
        )
    found = [_request(path, n, row, prefix_hits) for n, row in enumerate(rows, 2)]
    found.sort(key=lambda request: request.arrival_s)
    first, last = found[0].arrival_s, found[-1].arrival_s
    if last <= first:
        raise DistIRError(
            f"all requests of the trace {path} arrive at the same second; a rate needs two "
            f"different arrivals"
        )
    rate = (len(found) - 1) / (last - first)
    scaled = [
        TokenRequest((r.arrival_s - first) * rate, r.prompt, r.generate, r.cached)
        for r in found
    ]
    return Workload(scaled), rate


def _request(
    path: Path, line: int, row: dict[str, str], prefix_hits: float
) -> TokenRequest:
    try:
        arrival = float(row["arrival_s"])
        prompt, generate = int(row["prompt"]), int(row["generate"])
    except (TypeError, ValueError):
        arrival, prompt, generate = inf, 0, 0
    if not isfinite(arrival) or prompt < 1 or generate < 1:
        raise DistIRError(
            f"line {line} of the trace {path} must be a time in seconds and two positive "
            f"whole numbers of tokens, prompt and generate"
        )
    return TokenRequest(arrival, prompt, generate, _cached(prompt, prefix_hits))
