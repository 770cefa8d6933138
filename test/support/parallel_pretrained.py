"""Parallel modules that take their values from files of weights, on ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from distir.errors import DistIRError
from distir.parallel import parallel_module
from distir.parallel.parallelize import parallelize
from distir.parallel.pretrained.weights import open_weights
from support.parallel_scripts import Options, batch, own_part, tiny_gpt, whole

MIXTRAL: dict[str, Any] = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    max_position_embeddings=16,
    use_cache=False,
)


def _far(parallel: nn.Module, expected: dict[str, torch.Tensor]) -> float:
    """The largest difference of a parameter from its expected value."""
    found = {name: whole(p) for name, p in parallel.named_parameters()}
    assert found
    return max(float((p - expected[n]).abs().max()) for n, p in found.items())


def on_meta() -> nn.Module:
    """A model as `tiny_gpt` makes it, without values."""
    from transformers import GPT2LMHeadModel

    with torch.device("meta"):
        return GPT2LMHeadModel(tiny_gpt(layers=1).config)  # pyright: ignore[reportArgumentType]


def read_and_written(options: Options, folder: Path, written: Path) -> dict[str, float]:
    """
    Reads a model of a folder in parts, trains it for a step, and writes it. Returns how
    far parameters are from those of `from_pretrained`, before and after.
    """
    from transformers import GPT2LMHeadModel

    plain: Any = GPT2LMHeadModel.from_pretrained(folder)
    x, y = batch(0)
    parallel = parallelize(
        on_meta(), (x,), loss="cross_entropy", weights=folder, **options
    ).train()
    found = {"read": _far(parallel, plain.state_dict())}
    plain.train()
    for module in (parallel, plain):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        if module is parallel:
            loss = parallel(own_part(parallel, x), own_part(parallel, y))
        else:
            loss = F.cross_entropy(plain(x).logits.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
    parallel.save_pretrained(written, max_shard_size="20KB")
    files = list(written.glob("*.safetensors"))
    assert len(files) > 1
    again: Any = GPT2LMHeadModel.from_pretrained(written)
    expected = plain.state_dict()
    pairs = [(value, expected[n]) for n, value in again.state_dict().items()]
    found["written"] = max(float((one - two).abs().max()) for one, two in pairs)
    return found


def experts_read(options: Options, folder: Path) -> float:
    """
    Reads a Mixtral, whose files hold each expert apart. Returns how far parameters are
    from those of `from_pretrained`.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    plain = MixtralForCausalLM.from_pretrained(folder)
    with torch.device("meta"):
        model = MixtralForCausalLM(MixtralConfig(**MIXTRAL))
    model.set_experts_implementation("batched_mm")
    parallel = parallelize(
        model, (batch(0)[0],), loss="cross_entropy", weights=folder, **options
    )
    return _far(parallel, plain.state_dict())


def names_in_base(folder: Path) -> set[str]:
    """
    Returns the names of the parameters of a model with a head that are in the files of
    its base model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return set(open_weights(folder, on_meta()))


class Layers(nn.Module):
    """Layers of 16 MiB, and a vector that is whole on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(n, m, bias=False) for n, m in [(1024, 4096), (4096, 1024)] * 2
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for up, down in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = x + down(torch.relu(up(x)))
        return x


def kilobytes(name: str) -> int:
    """A row of the memory of this process, such as its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


@contextlib.contextmanager
def _peak_of_filling() -> Generator[list[float]]:
    """Yields a list that gets the growth in MiB of this process while it is filled."""
    found: list[float] = []
    fill = parallel_module.fill

    def measured(*args: Any) -> Any:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = kilobytes("VmRSS")
        result = fill(*args)
        found.append((kilobytes("VmHWM") - before) / 1024)
        return result

    parallel_module.fill = measured
    try:
        yield found
    finally:
        parallel_module.fill = fill


def memory_of_reading(options: Options, folder: Path) -> dict[str, float]:
    """
    Returns the MiB of this rank's parameters and how much more memory this process
    needed for reading them, at the peak.
    """
    with torch.device("meta"):
        model = Layers()
    with _peak_of_filling() as peak:
        parallel = parallelize(
            model, (torch.zeros(4, 1024),), loss="mse", weights=folder, **options
        )
    locals_ = [
        p.to_local() if isinstance(p, DTensor) else p for p in parallel.parameters()
    ]
    own = sum(p.numel() * p.element_size() for p in locals_) / 2**20
    return {"own": own, "peak": peak[0]}


def messages(folder: Path) -> list[str]:
    """Returns the errors and the warning for weights that do not fit."""
    x = torch.zeros(4, 8)
    found: list[str] = []
    for name in ("other", "short", "nothing", "lost", "missing"):
        try:
            parallelize(nn.Linear(8, 8), (x,), loss="mse", weights=folder / name)
            found.append("no error")
        except DistIRError as error:
            found.append(str(error))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = nn.Linear(8, 8)
        parallel = parallelize(module, (x,), loss="mse", weights=folder / "part")
    found += [str(w.message) for w in caught if "lacks" in str(w.message)]
    assert torch.equal(whole(parallel.bias), module.bias)
    assert float(whole(parallel.weight).min()) == 3.0
    dist.barrier()
    return found
