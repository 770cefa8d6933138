"""Runs a function on several processes that communicate, as `torchrun` would."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

_ENVIRONMENT = ("DISTIR_CACHE",)
_SECONDS = 240


def run_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """
    Returns what a function of an importable module returns on each of `count` ranks, which
    have one thread each and a process group. Fails with the traceback of the first rank
    that fails.
    """
    own = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    context = multiprocessing.get_context("forkserver")
    _start_server()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/ranks"
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        processes = [
            context.Process(
                target=_rank,
                args=(pipe, own, rank, count, meeting, function, arguments),
            )
            for rank, (_, pipe) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        try:
            results = [
                receiver.recv() for receiver, _ in pipes if receiver.poll(_SECONDS)
            ]
        finally:
            for process in processes:
                process.terminate()
                process.join()
    failed = [text for succeeded, text in results if not succeeded]
    assert not failed, "\n=====\n".join(failed)
    assert len(results) == count, "a rank gave no result in time"
    return [value for _, value in results]


@functools.cache
def _start_server() -> None:
    """
    Starts the process that ranks are forked from, which must be able to import these
    modules.
    """
    forkserver.set_forkserver_preload(["support.preloaded"])
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        forkserver.ensure_running()


def _rank(
    pipe: Connection,
    environment: dict[str, str],
    rank: int,
    count: int,
    meeting: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    # The process that is forked keeps the environment that it was started with.
    os.environ.update(environment)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        pipe.close()
        # Interpreters that end while gloo's threads live may abort.
        os._exit(0)
