"""
The program of each rank in a timing (`distir.launch.timing`): it loads the packages of
a job one after the other, makes random arguments, and times calls of their `main`.

A call starts on all ranks at the same moment of the machine's clock, and lasts until
the last rank has its results. If a call is short, several calls in a row are timed
together.

Alternatively, the packages take turns, call by call, as the ops of a program do. Each
call then finds in the caches the data of the other packages, and its own inputs, as if
a previous op had just computed them. Every rank runs packages of one process
independently, at the same time as the other ranks.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distir.system.output_files import write_text

AHEAD_S = 3e-4
"""
The time in seconds from the ranks' agreement on the start of a call to this start.
"""


def load_package(folder: str, name: str) -> tuple[Any, Any, Any]:
    """
    Returns the modules `program`, `runtime` and `collectives` of the package in
    `folder`. The package is imported under `name`, and replaces an earlier package of
    that name.
    """
    for known in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[known]
    path = Path(folder)
    spec = importlib.util.spec_from_file_location(
        name, path / "__init__.py", submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    names = ("program", "runtime", "collectives")
    return tuple(importlib.import_module(f"{name}.{n}") for n in names)  # pyright: ignore[reportReturnType]


def random_tensor(spec: Any, shape: tuple[int, ...], below: int) -> torch.Tensor:
    """
    Returns a random tensor for an argument: integers in [0, `below`), or true for
    booleans; states in [0, 1), because second moments must not be negative; other
    values from a normal distribution. Matrices that are parameters are scaled, so that
    products with them keep the magnitude of their operand.
    """
    if spec.dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    if not spec.dtype.is_floating_point:
        return torch.randint(0, below, shape, dtype=spec.dtype)
    if spec.role == "state":
        return torch.rand(shape).to(spec.dtype)
    scale = shape[0] ** -0.5 if spec.role == "parameter" and len(shape) > 1 else 1.0
    return (torch.randn(shape) * scale).to(spec.dtype)


Argument = torch.Tensor | float
"""A process's part of a tensor, or a setting of the optimizer."""


class TimedBody:
    """
    This rank's part of a program, with sets of arguments that its calls use in turn.
    """

    def __init__(self, job: dict[str, Any], number: int, rank: int, device: Any):
        loaded = load_package(job["folder"], f"timed{number}")
        self.program, self.runtime, self.collectives = loaded
        self.is_alone = len(self.program.RANKS) == 1
        self.job, self.device = job, device
        self.rank = 0 if self.is_alone else rank
        self.meshes: dict[str, Any] = {}
        self.calls = 1

    def connect(self, known: dict[str, Any]) -> None:
        """
        Makes the process groups of the program's meshes. `known` holds the groups of
        earlier programs; equal meshes use them again.
        """
        for name, spec in self.program.MESHES.items():
            key = f"{name} {spec.axes} {spec.ranks} {spec.groups}"
            if self.is_alone:
                continue  # nobody to connect to
            if key not in known:
                known[key] = self.runtime.ProcessMesh(spec, self.device.type)
            self.meshes[name] = known[key]
        own = self.program.RANKS[self.rank]
        self.body = own.program(self.meshes, own.numbers)

    def arguments(self, least: int = 1) -> list[list[Argument]]:
        """
        Returns sets of random arguments: at least `least` of them, and as many as the
        footprint of the package needs, up to 64.
        """
        own = self.program.RANKS[self.rank].program
        specs = [self.program.ARGUMENTS[i] for i in own.arguments]

        def made() -> list[Argument]:
            found: list[Argument] = []
            for spec in specs:
                if spec.default is not None:
                    found.append(spec.default)
                    continue
                mesh = self.program.MESHES.get(spec.mesh)
                shape = self.runtime.local_shape(spec, mesh)
                value = random_tensor(spec, shape, self.job["below"])
                found.append(self.runtime.placed(spec, value, self.device))
            return found

        sets = [made()]
        size = sum(x.nbytes for x in sets[0] if isinstance(x, torch.Tensor))
        while len(sets) < least or (
            size and len(sets) * size < self.job["footprint"] and len(sets) < 64
        ):
            sets.append(made())
        return sets

    def write(self, arguments: list[Argument]) -> None:
        """
        Overwrites each floating-point input in `arguments` with its own value, which
        brings as much of the input as fits into the caches. This imitates a program, in
        which the previous op has just computed the input.
        """
        own = self.program.RANKS[self.rank].program
        specs = [self.program.ARGUMENTS[i] for i in own.arguments]
        for spec, value in zip(specs, arguments, strict=True):
            if (
                spec.role == "input"
                and isinstance(value, torch.Tensor)
                and value.is_floating_point()
            ):
                value.mul_(1.0)


class Ranks:
    """All ranks of a timing, and a common clock."""

    def __init__(self, rank: int, size: int, device: torch.device):
        self.rank, self.size, self.device = rank, size, device

    def synchronise(self) -> None:
        """Waits until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def start(self) -> float:
        """
        Waits for a moment at which all ranks start together, and returns this moment.
        """
        self.synchronise()
        if self.size == 1:
            return time.perf_counter()
        dist.barrier()
        at = torch.tensor([time.perf_counter() + AHEAD_S], dtype=torch.float64)
        at = at.to(self.device)
        dist.broadcast(at, 0)
        moment = float(at.item())
        while time.perf_counter() < moment:
            pass
        return moment

    def largest(self, values: list[float]) -> list[float]:
        """Returns, for each of `values`, its maximum over all ranks."""
        if self.size == 1:
            return values
        found = torch.tensor(values, dtype=torch.float64).to(self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()


def peak_memory(body: TimedBody, ranks: Ranks) -> int:
    """
    Returns the largest number of bytes at one time that PyTorch's allocator gives out
    for the arguments and one call of a program: the maximum over the ranks, or 0 on the
    CPU, where the bytes are not counted.
    """
    if ranks.device.type != "cuda":
        return 0
    # The workspace of cuBLAS comes from the same allocator and is not the program's.
    square = torch.ones((16, 16), device=ranks.device)
    torch.addmm(square[0], square, square)
    ranks.synchronise()
    before = torch.cuda.memory_allocated(ranks.device)
    torch.cuda.reset_peak_memory_stats(ranks.device)
    (arguments, *_) = body.arguments()
    body.body.main(*arguments)
    body.collectives.finish_sends()
    ranks.synchronise()
    own = torch.cuda.max_memory_allocated(ranks.device) - before
    return round(ranks.largest([float(own)])[0])


def timed_calls(body: TimedBody, sets: list[list[Argument]], ranks: Ranks) -> float:
    """Returns the seconds per call, averaged over `body.calls` calls in a row."""
    main, finish = body.body.main, body.collectives.finish_sends
    count, different = body.calls, len(sets)
    start = ranks.start()
    for i in range(count):
        main(*sets[i % different])
        finish()
    ranks.synchronise()
    return (time.perf_counter() - start) / count


def time_body(body: TimedBody, ranks: Ranks, settings: dict[str, Any]) -> list[float]:
    """
    Returns `settings["samples"]` samples of the seconds per call, taken after warm-up
    calls.
    """
    sets = body.arguments()
    for _ in range(settings["warm_up"]):
        timed_calls(body, sets, ranks)
    (least,) = ranks.largest([timed_calls(body, sets, ranks)])
    body.calls = max(1, min(10_000, round(settings["least_s"] / max(least, 1e-7))))
    if body.calls > 1:
        timed_calls(body, sets, ranks)
    return ranks.largest(
        [timed_calls(body, sets, ranks) for _ in range(settings["samples"])]
    )


def time_in_turn(
    bodies: list[TimedBody], ranks: Ranks, settings: dict[str, Any]
) -> list[list[float]]:
    """
    Returns samples of the seconds per call of each program.

    The programs take turns. A turn begins with a call that is not timed, and continues
    with a few timed calls on other arguments, whose inputs have just been written.
    Code, and the results of a previous op, are thus in the caches, and parameters are
    not, as for ops that recur in a program.
    """
    calls = settings["in_turn"]
    arguments = [body.arguments(calls + 1)[: calls + 1] for body in bodies]
    starts: list[float] = []
    ends: list[float] = []
    ranks.start()
    for _ in range(settings["warm_up"] + settings["samples"]):
        for body, (first, *sets) in zip(bodies, arguments, strict=True):
            main, finish = body.body.main, body.collectives.finish_sends
            main(*first)
            finish()
            for given in sets:
                body.write(given)
                starts.append(time.perf_counter())
                main(*given)
                finish()
                ends.append(time.perf_counter())
    # A common call begins when the last rank begins; otherwise each rank is timed by
    # itself.
    own = [end - start for start, end in zip(starts, ends, strict=True)]
    slower = ranks.largest(own)
    last, until = ranks.largest(starts), ranks.largest(ends)
    found: list[list[float]] = [[] for _ in bodies]
    for i in range(settings["warm_up"] * len(bodies) * calls, len(starts), calls):
        body = i // calls % len(bodies)
        turn = range(i, i + calls)
        if bodies[body].is_alone:
            took = sum(slower[j] for j in turn)
        else:
            took = sum(until[j] - last[j] for j in turn)
        found[body].append(took / calls)
    return found


def described(device: torch.device, ranks: int) -> dict[str, Any]:
    """
    Returns the name and the memory in bytes of this rank's device. A CPU's memory is
    divided by the number of `ranks`.
    """
    if device.type == "cuda":
        memory = torch.cuda.mem_get_info(device)[1]
        return {"name": torch.cuda.get_device_name(device), "memory": memory}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks
    return {"name": f"one core of {cpu_name()}", "memory": memory}


def cpu_name() -> str:
    """
    Returns the name that the processor reports, or Python's name for the processor if
    it reports none.
    """
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--init-method", required=True)
    options = parser.parse_args()
    job = json.loads(Path(options.job).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    packages = job["packages"]
    runtime = load_package(packages[0]["folder"], "first")[1]
    try:
        rank, device = runtime.start(
            options.backend, job["ranks"], options.timeout, options.init_method
        )
    except runtime.ProgramError as error:
        sys.exit(f"error: {error}")
    ranks = Ranks(rank, job["ranks"], device)
    bodies = [TimedBody(p, i, rank, device) for i, p in enumerate(packages)]
    found: list[list[list[float]]] = [[] for _ in bodies]
    known: dict[str, Any] = {}
    with torch.inference_mode():
        for body in bodies:
            body.connect(known)
        peaks = [peak_memory(body, ranks) for body in bodies]
        for round_ in range(job["settings"]["rounds"]):
            if job["settings"]["in_turn"]:
                times = time_in_turn(bodies, ranks, job["settings"])
            else:
                times: list[list[float]] = []
                for body in bodies:
                    body.calls = 1
                    times.append(time_body(body, ranks, job["settings"]))
            for every, own in zip(found, times, strict=True):
                every.append(own)
            runtime.report(f"round {round_ + 1} of {job['settings']['rounds']} done")
    if rank == 0:
        about = described(device, job["ranks"])
        output = {"times": found, "peaks": peaks, "device": about}
        write_text(options.output, json.dumps(output))
    runtime.wait_for_all(device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
