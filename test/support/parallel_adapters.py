"""Models with adapters of peft, trained on several ranks and by PyTorch alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

from distir.parallel.parallelize import parallelize
from support.parallel_scripts import (
    Options,
    batch,
    cross_entropy,
    tiny_gpt,
    tiny_llama,
    train_parallel,
    train_plainly,
    whole,
    worst_difference,
)


def adapted(kind: str, dropout: float = 0.0, layers: int = 2) -> Any:
    """
    Returns a `llama` with a tied head and adapters (LoRA) on its queries and values, one
    whose adapters are parts of products (`dora`) beside a head that is trained as a whole,
    or a `gpt2` with adapters on its fused projections; `dropout` is that of the adapters.
    """
    from peft import LoraConfig, get_peft_model

    options: Options = dict(r=2, lora_alpha=4, lora_dropout=dropout)
    if kind == "gpt2":
        options |= dict(target_modules=["c_attn"], fan_in_fan_out=True)
        return get_peft_model(tiny_gpt(layers=layers), LoraConfig(**options))
    torch.manual_seed(0)
    model: Any = tiny_llama(layers)
    if kind == "llama":
        model.lm_head.weight = model.model.embed_tokens.weight
    else:
        options |= dict(use_dora=True, modules_to_save=["lm_head"])
    options |= dict(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(model, LoraConfig(**options))


def adapters_run(
    kind: str,
    options: Options,
    folder: Path,
    dropout: float = 0.0,
    layers: int = 2,
) -> dict[str, Any]:
    """
    Trains adapters in parallel and with plain PyTorch, and saves a checkpoint of all
    parameters in a folder.
    """
    words, labels = batch(0)
    plain = adapted(kind, dropout, layers)
    before = {n: v.clone() for n, v in plain.state_dict().items()}
    parallel = parallelize(
        adapted(kind, dropout, layers), (words,), loss="cross_entropy", **options
    )
    own = dict(parallel.named_parameters(remove_duplicate=False))
    theirs = dict(plain.named_parameters(remove_duplicate=False))
    embedding, head = (
        next((p for n, p in own.items() if n.endswith(end)), None)
        for end in ("embed_tokens.weight", "lm_head.weight")
    )
    found = train_parallel(parallel, range(3))
    expected = train_plainly(plain, range(3))
    state = parallel.state_dict()
    state_dict_saver.save({"model": state}, checkpoint_id=folder)
    plain.eval()
    return {
        "found": found,
        "expected": expected,
        "trained": {n for n, p in own.items() if p.requires_grad},
        "graded": {n for n, p in theirs.items() if p.requires_grad},
        "names": {n for n in state if not n.startswith("distir.")},  # counts dropouts
        "all names": set(before),
        "same": {n for n in before if n in state and _equal(state[n], before[n])},
        "tied": head is not None and head is embedding,
        "parameters": worst_difference(parallel, plain),
        "loss": cross_entropy(plain(words), labels).item(),
    }


def _equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(whole(found), expected)


def adapters_read(kind: str, folder: Path) -> float:
    """
    Returns the loss of peft's own model, on one process and without dropout, with the
    adapters of a checkpoint; its other weights are those it was made with.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    saved, module = adapted(kind), adapted(kind)
    state = {"model": saved.state_dict()}
    state_dict_loader.load(state, checkpoint_id=folder)
    adapters = get_peft_model_state_dict(saved, state_dict=state["model"])
    refused = set_peft_model_state_dict(module, adapters).unexpected_keys
    assert adapters and not refused, refused
    words, labels = batch(0)
    with torch.no_grad():
        return cross_entropy(module.eval()(words), labels).item()


def dropped_run(kind: str, options: Options) -> dict[str, Any]:
    """
    Trains adapters that drop half of what they are given, in parallel, and takes a step
    with plain PyTorch in which they drop nothing.
    """
    words, _ = batch(0)
    module: nn.Module = adapted(kind, 0.5, layers=1)
    parallel = parallelize(module, (words,), loss="cross_entropy", **options)
    (undropped,) = train_plainly(adapted(kind, layers=1), range(1))
    return {"found": train_parallel(parallel, range(3)), "undropped": undropped}
