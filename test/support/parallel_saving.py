"""Parallel modules that are written as models of transformers, which tests run on ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from distir.errors import DistIRError
from distir.parallel import parallel_module
from distir.parallel.parallelize import parallelize
from support.parallel_pretrained import MIXTRAL, kilobytes
from support.parallel_scripts import (
    LENGTH,
    WORDS,
    Options,
    batch,
    own_part,
    tiny_gpt,
)
from support.parallel_shapes import message_of


def saved_after_a_step(options: Options, folder: Path) -> dict[str, float]:
    """
    Trains GPT-2 for a step and saves it. Returns the largest differences of its whole
    parameters, and of those of the model that is loaded, from PyTorch's.
    """
    from transformers import GPT2LMHeadModel

    plain = tiny_gpt(layers=4)
    x, y = batch(0)
    parallel = parallelize(tiny_gpt(layers=4), (x,), loss="cross_entropy", **options)
    assert parallel.config.n_layer == 4
    parallel.train()
    plain.train()
    ours = torch.optim.SGD(parallel.parameters(), lr=0.1)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    parallel(own_part(parallel, x), own_part(parallel, y)).backward()
    ours.step()
    F.cross_entropy(plain(x).logits.flatten(0, 1), y.flatten()).backward()
    theirs.step()
    state = parallel.whole_state_dict()
    with _refused_to_collect():
        parallel.save_pretrained(folder)  # one small file
        parallel.save_pretrained(folder, max_shard_size="20KB")
    if dist.get_rank() > 0:
        assert not state
        return {"state": 0.0, "loaded": 0.0}
    expected = plain.state_dict()
    assert state.keys() == expected.keys()
    loaded = GPT2LMHeadModel.from_pretrained(folder).state_dict()
    return {
        "state": max(float((state[n] - v).abs().max()) for n, v in expected.items()),
        "loaded": max(float((loaded[n] - v).abs().max()) for n, v in expected.items()),
    }


@contextlib.contextmanager
def _refused_to_collect() -> Generator[None]:
    """A context manager in which no rank brings the whole state together."""
    known = parallel_module.whole_state
    parallel_module.whole_state = None  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        parallel_module.whole_state = known


def written_experts(options: Options, folder: Path) -> float:
    """
    Writes a Mixtral, whose files hold each expert apart. Returns how far the model that
    is loaded is from the one that was written.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    plain = MixtralForCausalLM(MixtralConfig(**MIXTRAL))
    plain.set_experts_implementation("batched_mm")
    expected = {n: v.clone() for n, v in plain.state_dict().items()}
    parallel = parallelize(plain, (batch(0)[0],), loss="cross_entropy", **options)
    with _refused_to_collect():
        parallel.save_pretrained(folder, max_shard_size="30KB")
    loaded = MixtralForCausalLM.from_pretrained(folder).state_dict()
    assert loaded.keys() == expected.keys()
    return max(float((loaded[n] - v).abs().max()) for n, v in expected.items())


def memory_of_writing(options: Options, folder: Path) -> dict[str, float]:
    """
    Writes a LLaMA of 48 MiB in files of at most 4 MB. Returns by how many MiB this
    process grew, the sizes of the files that it wrote, and the difference of what is
    loaded from the parameters.
    """
    import safetensors.torch  # as these need memory, too
    import transformers.core_model_loading
    from transformers import LlamaConfig, LlamaForCausalLM

    assert safetensors.torch and transformers.core_model_loading
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=6,
            hidden_size=512,
            intermediate_size=1024,
            num_attention_heads=8,
            vocab_size=WORDS,
            max_position_embeddings=LENGTH,
            use_cache=False,
        )
    )
    expected = {n: v.clone() for n, v in model.state_dict().items()}
    all_bytes = sum(v.nbytes for v in expected.values())
    parallel = parallelize(model, (batch(0)[0],), loss="cross_entropy", **options)
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kilobytes("VmRSS")
    parallel.save_pretrained(folder, max_shard_size="4MB")
    peak = (kilobytes("VmHWM") - before) / 1024
    loaded = LlamaForCausalLM.from_pretrained(folder).state_dict()
    return {
        "all": all_bytes / 2**20,
        "peak": peak,
        "largest": max(f.stat().st_size for f in folder.glob("*.safetensors")) / 1e6,
        "files": len(list(folder.glob("*.safetensors"))),
        "apart": max(float((loaded[n] - v).abs().max()) for n, v in expected.items()),
    }


def unwritable(folder: Path) -> str:
    """Returns the message for a folder that is a file."""
    parallel = parallelize(tiny_gpt(), (batch(0)[0],), loss="cross_entropy", d=2)
    return message_of(lambda: parallel.save_pretrained(folder))


def saved_without_a_way() -> str:
    """Returns the message for a module that has no `save_pretrained`."""
    x = torch.randn(4, 8)
    parallel = parallelize(nn.Linear(8, 8), (x,), loss="mse")
    try:
        parallel.save_pretrained("nowhere")
    except DistIRError as error:
        return str(error)
    return "no error"
