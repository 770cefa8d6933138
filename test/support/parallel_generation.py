"""Parallel modules that generate tokens after some steps of training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import distir
from distir.errors import DistIRError
from support.generation import PROMPTS, tiny_model

NEW = 8


def generated_after_training(
    kind: str, plan: Mapping[str, Any], new: int = NEW
) -> dict[str, Any]:
    """
    What a model generates after two steps of training under `plan`, with the tokens that
    transformers generates with the same weights on rank 0, and facts of the calls.
    """
    model = tiny_model(kind)
    _use_cache(model, False)  # in training; generation has a cache of its own
    ids = torch.arange(4 * 6).reshape(4, 6) % 90
    inputs: dict[str, Any] = {"input_ids": ids, "labels": ids}
    parallel = distir.parallelize(model.train(), (), inputs, check="off", **plan)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.3)
    rows = ids.tensor_split(parallel.data_ranks)[parallel.data_rank]
    found: dict[str, Any] = {}
    before = parallel.generate(PROMPTS, max_new_tokens=new)
    for _ in range(2):
        parallel.step(input_ids=rows, labels=rows)
        optimizer.step()
        optimizer.zero_grad()
    programs = dict(parallel.__dict__["_generations"])
    found["tokens"] = parallel.generate(PROMPTS, max_new_tokens=new)
    found["trained"] = parallel.training
    found["changed"] = before != found["tokens"]
    longest = max(map(len, PROMPTS))
    padded = torch.tensor([[0] * (longest - len(p)) + p for p in PROMPTS])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in PROMPTS])
    stop = found["tokens"][0][-2]
    given: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": new}
    given |= {"eos_token_id": stop, "pad_token_id": 95}
    found["tensor"] = parallel.generate(padded, **given).tolist()
    found["same programs"] = programs == parallel.__dict__["_generations"]
    found["errors"] = [
        _message(lambda: parallel.generate(padded, padded[:1], max_new_tokens=1)),
        _message(lambda: parallel.generate(padded, mask.flip(1), max_new_tokens=1)),
        _message(lambda: parallel.generate(PROMPTS, max_new_tokens=100)),
        _message(lambda: parallel.generate([[]], max_new_tokens=1)),
    ]
    state = parallel.whole_state_dict()
    if dist.get_rank() == 0:
        model.load_state_dict(state)
        _use_cache(model.eval(), True)
        one = {"max_new_tokens": new, "do_sample": False}
        found["wanted"] = [
            model.generate(torch.tensor([p]), **one)[0].tolist() for p in PROMPTS
        ]
        found["wanted tensor"] = model.generate(
            padded, **given, do_sample=False
        ).tolist()
    return found


def _use_cache(model: Any, is_used: bool) -> None:
    for part in (model, getattr(model, "decoder", model)):
        part.config.use_cache = is_used


def _message(call: Any) -> str:
    try:
        call()
    except DistIRError as error:
        return str(error)
    return ""
