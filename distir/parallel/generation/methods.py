"""The method of a parallel module that generates tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, cast

import torch

from distir.errors import DistIRError
from distir.frontends.serving import ServingSizes
from distir.parallel.generation.programs import PREFILL_PROGRAM, Generation
from distir.parallel.rank_program import RankProgram
from distir.parallel.shapes import SharedShapes
from distir.parallel.training.batch_methods import BatchMethods
from distir.parallel.training.stored_values import StoredValues

Prompts = Sequence[Sequence[int]]

_ROOM = 64
"""Sizes of prompts and caches are multiples of this, so that few programs are made."""

MakeGeneration = Callable[[ServingSizes], Generation]
"""Makes the programs of generation for some sizes, on all ranks."""


class GenerationMethods(BatchMethods):
    """
    A parallel module that generates tokens with the current values of its parameters.
    """

    _program: RankProgram
    _stored: StoredValues
    _make_generation: MakeGeneration
    _shapes: SharedShapes
    config: Any

    def generate(
        self,
        input_ids: torch.Tensor | Prompts,
        attention_mask: torch.Tensor | None = None,
        *,
        max_new_tokens: int,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
    ) -> torch.Tensor | list[list[int]]:
        """
        Generates tokens greedily: each new token is the one with the largest logit. The
        result equals `generate` of the source module, a Hugging Face model, with the
        current parameters and `do_sample=False`.

        `input_ids` are the prompts of all ranks. The prompts and the result are the
        same on every rank. Lists of token ids give lists: each prompt, followed by its
        new tokens. A tensor [batch, tokens] gives a tensor: its rows, followed by the
        new tokens. `attention_mask` [batch, tokens] is 0 for padding on the left of a
        tensor. In the result of an encoder-decoder, the start token replaces the
        prompt.

        A sequence ends with a token of `eos_token_id`, by default from the model's
        `generation_config`, and is followed by `pad_token_id` in a tensor.

        The first call makes the programs of prefill and decode, for prompts and caches
        of multiples of 64 tokens. Later calls with the same sizes reuse them. Every
        rank must call this method. Raises DistIRError if the module does not generate
        tokens, or if the arguments do not fit.
        """
        stop, pad = self._ends(eos_token_id, pad_token_id)
        rows = _rows(input_ids, attention_mask)
        has_encoder = bool(getattr(self.config, "is_encoder_decoder", False))
        made = self._generation(rows, max_new_tokens, has_encoder)
        new = self._generated(made, rows, max_new_tokens, stop)
        if not isinstance(input_ids, torch.Tensor):
            return new
        kept = [0 if has_encoder else len(row) for row in rows]
        behind = [row[count:] for row, count in zip(new, kept, strict=True)]
        length = max(map(len, behind))
        for row in behind:
            row += [pad] * (length - len(row))
        found = torch.tensor(behind, dtype=input_ids.dtype, device=input_ids.device)
        return found if has_encoder else torch.cat([input_ids, found], dim=1)

    def _ends(
        self, eos: int | Sequence[int] | None, pad: int | None
    ) -> tuple[frozenset[int], int]:
        """
        Returns the tokens that end a sequence, and the token that fills a row after the
        end.
        """
        if not hasattr(self, "config"):
            raise DistIRError(
                f"generate: {type(self).__name__} of a module that is no model of "
                f"transformers has no steps of generation"
            )
        own = getattr(self, "generation_config", None)
        if eos is None:
            eos = getattr(own, "eos_token_id", None)
        if pad is None:
            pad = getattr(own, "pad_token_id", None)
        stop = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
        return frozenset(stop), (stop[0] if stop else 0) if pad is None else pad

    def _generation(self, rows: Prompts, new: int, has_encoder: bool) -> Generation:
        """
        Returns the programs for these prompts, and makes them if they do not exist yet.
        """
        if new < 1:
            raise DistIRError(f"generate: max_new_tokens is {new}; give at least 1")
        longest = max(map(len, rows))
        prompt = ceil(longest / _ROOM) * _ROOM
        most = getattr(self.config, "max_position_embeddings", None)
        held = (1 if has_encoder else longest) + new - 1
        if isinstance(most, int) and held > most:
            raise DistIRError(
                f"generate: prompts of {longest} tokens and {new} new ones are more than "
                f"the {most} positions of the model; ask for fewer"
            )
        cache = max(ceil(held / _ROOM) * _ROOM, 0 if has_encoder else prompt)
        if isinstance(most, int):
            prompt, cache = min(prompt, max(most, longest)), min(cache, most)
        parts = self.data_ranks * self._shapes.micro_batches
        sizes = ServingSizes(ceil(len(rows) / parts) * parts, cache, prompt)
        known = cast(
            dict[ServingSizes, Generation], self.__dict__.setdefault("_generations", {})
        )
        if sizes not in known:
            known[sizes] = self._make_generation(sizes)
        return known[sizes]

    def _generated(
        self, made: Generation, rows: Prompts, new: int, stop: frozenset[int]
    ) -> list[list[int]]:
        """Returns the prompts, each followed by its new tokens."""
        module: Any = made.package.module("generation")
        held = dict[str, torch.Tensor]()
        named: Mapping[str, torch.Tensor] = {
            **dict(self.named_buffers(remove_duplicate=False)),
            **dict(self.named_parameters(remove_duplicate=False)),
        }
        for program in (made.prefill, made.decode):
            given = {s.name: torch.empty(0) for s in program.all_arguments if s.feeds}
            given |= held  # caches, and parameters that the other entry has too
            held |= self._stored.held(program, given, named)
        programs = module.EntryPrograms(
            made.package.module(PREFILL_PROGRAM), made.package.program
        )
        generator = module.Generator(
            programs,
            (made.decode.rank, made.decode.device, made.decode.body),
            (),
            held=held,
            prefill_body=made.prefill.body,
        )
        with made.decode.running():
            return generator.generate([list(row) for row in rows], new, stop)


def _rows(
    input_ids: torch.Tensor | Prompts, mask: torch.Tensor | None
) -> list[list[int]]:
    """
    Returns prompts as lists of tokens without padding. Raises DistIRError if
    `input_ids` are not prompts, or if padding is not on their left.
    """
    if not isinstance(input_ids, torch.Tensor):
        rows = [list(row) for row in input_ids]
        if mask is not None:
            raise DistIRError(
                "generate: attention_mask belongs to a tensor of prompts; lists have no "
                "padding"
            )
    else:
        if input_ids.ndim != 2 or (mask is not None and mask.shape != input_ids.shape):
            shapes = list(input_ids.shape), None if mask is None else list(mask.shape)
            raise DistIRError(
                f"generate: prompts are a tensor [batch, tokens], with an attention_mask "
                f"of the same shape, but have shapes {shapes[0]} and {shapes[1]}"
            )
        seen = (torch.ones_like(input_ids) if mask is None else mask).bool().tolist()
        rows = list[list[int]]()
        for tokens, own in zip(input_ids.tolist(), seen, strict=True):
            count = sum(own)
            if any(own[: len(own) - count]):
                raise DistIRError(
                    "generate: the attention_mask of prompts is 0 on their left alone "
                    '(padding_side="left" of a tokenizer); pad them there'
                )
            rows.append(tokens[len(own) - count :])
    if not rows or not all(rows):
        raise DistIRError("generate: give at least one prompt, each with a token")
    return rows
