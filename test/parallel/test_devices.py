"""Which device a process computes on, as far as that can be seen without a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from distir.errors import DistIRError
from distir.parallel import parallelize


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A node of two GPUs that nothing has used; returns the GPUs that are chosen."""
    chosen: list[int] = []
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: bool(chosen))
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "set_device", chosen.append)
    monkeypatch.setattr(cuda, "current_device", lambda: chosen[-1])
    return chosen


def joined(monkeypatch: pytest.MonkeyPatch, backends: str, local: int) -> torch.device:
    """Returns the device of a process that has joined others with these backends."""
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    monkeypatch.setenv("LOCAL_RANK", str(local))
    return parallelize._device()  # pyright: ignore[reportPrivateUsage]


# The second is what `init_process_group()` without a backend chooses beside GPUs.
@pytest.mark.parametrize("backends", ["cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_each_process_has_a_gpu_of_its_own(
    backends: str, two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert joined(monkeypatch, backends, 1) == torch.device("cuda", 1)


def test_the_gpu_of_the_script_stays(
    two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.set_device(0)
    assert joined(monkeypatch, "cuda:nccl", 1) == torch.device("cuda", 0)
    assert two_gpus == [0]


def test_too_few_gpus(two_gpus: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DistIRError, match=r"one GPU per process.*--nproc-per-node 2"):
        joined(monkeypatch, "cuda:nccl", 2)


def test_gloo_computes_on_the_cpu(
    two_gpus: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert joined(monkeypatch, "cpu:gloo,cuda:gloo", 1) == torch.device("cpu")
    assert not two_gpus
