"""
Makes the process group of the ranks that torchrun starts, also after a rank has died.

Ranks find each other through a store of keys and values, in which they leave their
addresses. `torchrun --max-restarts` starts all ranks again, but keeps the store of the
first start. The store still has the addresses of dead ranks, and a new rank may find
one of them. Therefore the ranks of each start agree on a prefix for their keys.
"""

import os
import time
import uuid
from datetime import timedelta

import torch.distributed as dist

_PAUSE_S = 0.01
"""The seconds between two looks into the store."""


def join_ranks(backend, timeout):
    """
    Makes the process group of the ranks that torchrun has started. Every rank must call
    this function. `timeout` is a `timedelta`, or None for PyTorch's default. Raises
    RuntimeError if ranks do not come in time.
    """
    own = {} if timeout is None else {"timeout": timeout}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, **own)
        return
    limit = timeout or timedelta(minutes=30)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, size, is_master=False, timeout=limit)
    store = dist.PrefixStore(agreed_prefix(store, rank, size, limit), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, **own)


def agreed_prefix(store, rank, size, limit):
    """
    Returns a prefix for keys in `store` that is the same on all ranks of this start,
    and different from the prefixes of earlier starts.

    Each rank writes a random number to the store. Rank 0 offers a prefix to all ranks
    whose numbers it sees. If a number changes, the old number came from an earlier
    start, and rank 0 begins again. `limit` is a `timedelta`. Raises RuntimeError if a
    rank does not come within this time.
    """
    end = time.monotonic() + limit.total_seconds()
    drawn = uuid.uuid4().hex
    store.set(f"distir/rank/{rank}", drawn)
    if rank == 0:
        return _offered(store, drawn, size, end)
    agreed = None
    while agreed is None or not store.check([f"distir/agreed/{agreed}"]):
        if store.check([f"distir/offer/{drawn}"]):
            offer = store.get(f"distir/offer/{drawn}").decode()
            if offer != agreed:
                agreed = offer
                store.set(f"distir/answer/{agreed}/{rank}", drawn)
        _wait(end, "rank 0")
    return agreed


def _offered(store, drawn, size, end):
    """
    Returns the prefix to which all ranks have agreed. Only rank 0 calls this. `drawn`
    is the random number of rank 0, `size` the number of ranks, and `end` the latest
    time.
    """
    names = [f"distir/rank/{rank}" for rank in range(size)]
    while True:
        seen = [drawn]
        for rank in range(1, size):
            while not store.check([names[rank]]):
                _wait(end, f"rank {rank}")
            seen.append(store.get(names[rank]).decode())
        offer = f"distir/start/{store.add('distir/starts', 1)}"
        for each in seen:
            store.set(f"distir/offer/{each}", offer)
        answers = [f"distir/answer/{offer}/{rank}" for rank in range(1, size)]
        while [store.get(name).decode() for name in names] == seen:
            if not answers or store.check(answers):
                store.set(f"distir/agreed/{offer}", drawn)
                return offer
            _wait(end, "another rank")


def _wait(end, whom):
    """
    Waits for a moment. Raises RuntimeError after the time `end`; its message says that
    `whom` did not come.
    """
    if time.monotonic() > end:
        raise RuntimeError(
            f"{whom} did not come to the store of torchrun in time; see whether it has "
            f"failed, and on which node"
        )
    time.sleep(_PAUSE_S)
