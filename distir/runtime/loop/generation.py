"""
Generates tokens. The program `prefill` fills the cache with prompts, and the program
`decode` runs once for each new token. Both use the same parameters and the same cache,
which decode updates in place.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from .. import runtime


@dataclass(frozen=True)
class EntryPrograms:
    """The Python modules of a package that hold the programs of its entries."""

    prefill: object
    decode: object


def check(prompts, max_new_tokens, programs):
    """
    Raises ProgramError unless `prompts` are lists of token ids that fit into prefill,
    and into the cache together with `max_new_tokens` new tokens.
    """
    length = _input(programs.prefill, "tokens").shape[1]
    limit = _input(programs.decode, "positions").limit
    start = _input(programs.decode, "tokens").start
    (logits,) = (spec for spec in programs.decode.RESULTS if not spec.updates)
    if max_new_tokens < 1:
        raise runtime.ProgramError(
            f"{max_new_tokens} new tokens are asked for; give at least 1"
        )
    if not isinstance(prompts, list) or not prompts:
        raise runtime.ProgramError(
            "prompts are a list of lists of token ids, such as [[1, 15043], [1, 306]]"
        )
    for number, prompt in enumerate(prompts):
        is_list = isinstance(prompt, list) and prompt
        if not is_list or not all(type(t) is int and t >= 0 for t in prompt):
            raise runtime.ProgramError(
                f"prompt {number} is {str(prompt)[:60]}, but a prompt is a list of token ids"
            )
        # Parts of an embedding would take the row of another device to be zero.
        if max(prompt) >= logits.shape[-1]:
            raise runtime.ProgramError(
                f"prompt {number} has the token {max(prompt)}, but the model's tokens are "
                f"0 to {logits.shape[-1] - 1}; use the tokenizer of this model"
            )
        # In an encoder-decoder the start token takes a slot, and the prompt none.
        held = len(prompt) if start is None else 1
        if len(prompt) > length:
            raise runtime.ProgramError(
                f"prompt {number} has {len(prompt)} tokens, but prefill takes {length} at "
                f"most; make the program with a larger --prompt"
            )
        # The last token is returned, and never goes into the cache.
        if held + max_new_tokens - 1 > limit:
            raise runtime.ProgramError(
                f"prompt {number} takes {held} tokens, and with {max_new_tokens} new ones "
                f"they are more than the {limit} of the cache; ask for fewer, or make the "
                f"program with a larger --cache"
            )
    table = _input(programs.decode, "pages")
    if table is not None:
        _check_pages(prompts, max_new_tokens, table)


def _check_pages(prompts, max_new_tokens, table):
    """
    Raises ProgramError unless each pool has the pages for all prompts that share it,
    with their new tokens.
    """
    _, pages, size = table.pages
    for start in range(0, len(prompts), table.shape[0]):
        needed = {}
        for row, prompt in enumerate(prompts[start : start + table.shape[0]]):
            pool = Pages.pool_of(table, row)
            count = -(-(len(prompt) + max_new_tokens - 1) // size)
            needed[pool] = needed.get(pool, 0) + count
        if max(needed.values()) > pages:
            raise runtime.ProgramError(
                f"prompts from number {start} on with {max_new_tokens} new tokens need "
                f"{max(needed.values())} pages of {size} tokens in one pool of {pages}; ask "
                f"for fewer tokens, or make the program with more --pages"
            )


def generate(
    programs,
    backend,
    sources,
    prompts,
    max_new_tokens,
    *,
    stop=(),
    timeout_s=600.0,
    init_method="env://",
):
    """
    Returns the prompts, each followed by up to `max_new_tokens` new tokens, on every
    process.

    An encoder-decoder begins with its start token instead of the prompt. Each new token
    is the one with the largest logit. A sequence ends with the first token in `stop`.
    If there are more prompts than samples in the program's batch, they run batch after
    batch. `sources` are tables of parameters by name. Raises ProgramError if prompts do
    not fit or a parameter is missing.
    """
    check(prompts, max_new_tokens, programs)
    with runtime.processes(programs.decode, backend, timeout_s, init_method) as process:
        generator = Generator(programs, process, sources)
        runtime.report("generating")
        return generator.generate(prompts, max_new_tokens, stop)


class Generator:
    """
    Generates tokens on one process, with its parts of the parameters and of the cache,
    and the programs of both entries. `process` is a tuple of the rank, the device, and
    the rank's program of decode. `sources` are tables of parameters by name. `held` has
    parts of arguments that the process has already, by name. `prefill_body` is the
    rank's program of prefill, if it exists already.
    """

    def __init__(self, programs, process, sources, *, held=None, prefill_body=None):
        self.rank, self.device, body = process
        self.decode = _Entry(programs.decode, self.rank, body)
        if prefill_body is None:
            prefill_body = runtime.body_of(programs.prefill, self.rank, self.device)
        self.prefill = _Entry(programs.prefill, self.rank, prefill_body)
        self.batch, self.length = _input(programs.prefill, "tokens").shape
        self.start = _input(programs.decode, "tokens").start
        self.held = {} if held is None else held
        if held is None:
            runtime.report("loading arguments")
        for entry in (self.prefill, self.decode):
            for spec in entry.arguments:
                if not spec.feeds and spec.name not in self.held:
                    mesh = entry.program.MESHES.get(spec.mesh)
                    self.held[spec.name] = self._value(spec, mesh, sources)

    def _value(self, spec, mesh, sources):
        """
        Returns this process's part of a parameter, or zeros for its part of a cache.
        """
        if spec.role == "cache":
            shape = runtime.local_shape(spec, mesh)
            return torch.zeros(shape, dtype=spec.dtype, device=self.device)
        value = runtime.argument(spec, mesh, self.rank, sources)
        return runtime.placed(spec, value, self.device)

    def generate(self, prompts, max_new_tokens, stop=()):
        """
        Returns the prompts with their new tokens, as the function `generate` does.
        """
        found = []
        for start in range(0, len(prompts), self.batch):
            part = prompts[start : start + self.batch]
            found += self._batch(part, max_new_tokens, frozenset(stop))
        return found

    def _batch(self, prompts, max_new_tokens, stop):
        table = _input(self.decode.program, "pages")
        pages = None if table is None else Pages(table)
        # Places without a prompt compute one token, which nobody looks at.
        rows = [*prompts, *([[0]] * (self.batch - len(prompts)))]
        counts = [len(row) for row in rows]
        padding = [self.length - count for count in counts]
        padded = [[0] * n + row for n, row in zip(padding, rows, strict=True)]
        self._hold(pages, range(len(prompts)), counts)
        new = self._run(self.prefill, pages, tokens=padded, padding=padding)
        if self.start is None:
            made = [list(prompt) for prompt in prompts]
        else:
            made, counts = [[self.start] for _ in prompts], [1] * self.batch
        positions = torch.tensor(counts, device=self.device)
        going = set(range(len(prompts)))
        for step in range(max_new_tokens):
            for i, token in enumerate(new.tolist()):
                if i in going:
                    made[i].append(token)
                    if token in stop:
                        going.discard(i)
                        if pages is not None:
                            pages.release(i)
            if not going or step == max_new_tokens - 1:
                break
            last = new.unsqueeze(1)
            self._hold(pages, sorted(going), [count + step + 1 for count in counts])
            new = self._run(
                *(self.decode, pages),
                tokens=last,
                positions=positions,
                padding=padding,
            )
            positions = positions + 1
        return made

    def _hold(self, pages, rows, counts):
        """Gives the sequences `rows` the pages for `counts[row]` tokens each."""
        for row in rows if pages is not None else ():
            pages.hold(row, counts[row])

    def _run(self, entry, pages, **inputs):
        """
        Runs an entry and stores the new content of the cache. Returns the tokens
        [batch] with the largest logits.
        """
        if pages is not None:
            inputs["pages"] = pages.table
        arguments = [
            self._part(entry, spec, inputs[spec.feeds])
            if spec.feeds
            else self.held[spec.name]
            for spec in entry.arguments
        ]
        results = runtime.results_of(entry.body, arguments)
        own = {}
        for index, value in zip(entry.results, results, strict=True):
            spec = entry.program.RESULTS[index]
            if spec.updates:
                self.held[spec.updates] = value
            else:
                own[index] = value
        return self._largest(entry, own)

    def _part(self, entry, spec, value):
        """Returns this process's part of the input `value`."""
        whole = torch.as_tensor(value, dtype=spec.dtype, device=self.device)
        mesh = entry.program.MESHES.get(spec.mesh)
        if mesh is None:
            return whole
        return runtime.shard(whole, spec, mesh, self.rank).contiguous()

    def _largest(self, entry, own):
        """
        Returns the tokens [batch] with the largest logits, on all processes. `own` maps
        the index of a result to this process's part of the logits.
        """
        specs = {i: s for i, s in enumerate(entry.program.RESULTS) if not s.updates}
        whole = runtime.collect(specs, own, entry.program.MESHES, self.rank)
        tokens = torch.empty(self.batch, dtype=torch.int64, device=self.device)
        if self.rank == 0:
            (logits,) = whole.values()
            tokens.copy_(logits.reshape(self.batch, -1).argmax(-1))
        if dist.get_world_size() > 1:
            dist.broadcast(tokens, 0)
        return tokens


class _Entry:
    """
    An entry of a package on one process: its program, and the arguments and results of
    this rank.
    """

    def __init__(self, program, rank, body):
        self.program, self.body = program, body
        own = program.RANKS[rank].program
        self.arguments = [program.ARGUMENTS[i] for i in own.arguments]
        self.results = own.results


class Pages:
    """
    The pages of the cache that sequences hold. `table` is the table of the program: for
    each sequence its pages in order, then -1. `spec` is the program's input for the
    table.
    """

    def __init__(self, spec):
        pools, pages, self.size = spec.pages
        self._spec = spec
        self._free = [list(range(pages)) for _ in range(pools)]
        self._held = [[] for _ in range(spec.shape[0])]

    @staticmethod
    def pool_of(spec, row):
        """Returns the number of the pool of the sequence `row`."""
        return row // (spec.shape[0] // spec.pages[0])

    @property
    def table(self):
        """The table as lists of pages, one list for each sequence."""
        columns = self._spec.shape[1]
        return [held + [-1] * (columns - len(held)) for held in self._held]

    def hold(self, row, tokens):
        """Gives the sequence `row` free pages until it has room for `tokens` tokens."""
        free, held = self._free[self.pool_of(self._spec, row)], self._held[row]
        while len(held) * self.size < tokens:
            held.append(free.pop())

    def release(self, row):
        """Takes all pages from the sequence `row`."""
        self._free[self.pool_of(self._spec, row)] += self._held[row]
        self._held[row] = []


def _input(program, feeds):
    """
    Returns the input of a program that takes values of the kind `feeds`, such as
    `tokens`, or None if there is no such input.
    """
    return next((spec for spec in program.ARGUMENTS if spec.feeds == feeds), None)
