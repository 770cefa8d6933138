"""
The modules that make up a generated program, and the assignment of their tensors.

The members of a module are also in its `__dict__`, where Python finds them directly.
The look-up of `torch.nn.Module` takes about a microsecond, which matters in a step of
small tensors.
"""

from dataclasses import dataclass, field

import torch
from torch import nn

from . import devices


@dataclass(frozen=True)
class Places:
    """
    The arguments and results of a rank's program, as indices of rows of `ARGUMENTS` and
    `RESULTS`.

    `members` gives the path of each argument that a module holds. `overwritten` gives,
    for each result that overwrites an argument, the index of this argument. If the
    caller computes the loss, the program returns the results `given`, then takes the
    arguments `awaited`, the gradients of these results. The program does this `parts`
    times, once for each micro-batch.
    """

    arguments: tuple[int, ...]
    results: tuple[int, ...]
    members: dict[int, str] = field(default_factory=dict)
    overwritten: dict[int, int] = field(default_factory=dict)
    given: tuple[int, ...] = ()
    awaited: tuple[int, ...] = ()
    parts: int = 0


class Scope(nn.Module):
    """
    Modules and tensors by name. Members whose name is a number are elements, and can be
    indexed.
    """

    def __getitem__(self, number):
        if isinstance(number, slice):
            step = number.step or 1
            stop = -1 if number.stop is None else number.stop
            return [self[i] for i in range(number.start or 0, stop, step)]
        return self.__dict__[str(number)]  # a module or a tensor

    def __iter__(self):
        return iter(self._modules.values())

    def __reversed__(self):
        return reversed(self._modules.values())

    def __len__(self):
        return len(self._modules)


def _place(module, path):
    """
    Returns the module that contains the last part of `path`, and this last part.
    Missing modules on the path are made.
    """
    *parts, last = path.split(".")
    for part in parts:
        if part not in module._modules:
            _add(module, part, Scope())
        module = module._modules[part]
    return module, last


def _add(module, name, child):
    module.add_module(name, child)
    module.__dict__[name] = child


def add_module(module, path, child):
    """Puts module `child` at a path inside of `module`, such as `layers.3`."""
    inside, name = _place(module, path)
    _add(inside, name, child)


def add_parameters(module, *paths, states=()):
    """
    Declares parameters of a module at `paths`, and for each of them optimizer states,
    whose names begin with the parameter's name. `RankModule.hold` assigns their
    tensors.
    """
    for path in paths:
        inside, name = _place(module, path)
        inside.register_parameter(name, None)
        _note(module, "", inside._parameters, name)
        for state in states:
            inside.register_buffer(f"{name}_{state}", None)
            _note(module, state, inside._buffers, f"{name}_{state}")


def _note(module, kind, tensors, name):
    if not hasattr(module, "_tensors"):
        module._tensors = {}
    module._tensors.setdefault(kind, []).append((tensors, name))


def tensors(module, state=""):
    """
    Returns all parameters of a module, or all states of kind `state` of these
    parameters, in the order of declaration.
    """
    return [tensors[name] for tensors, name in module._tensors[state]]


def add_buffers(module, *paths):
    """
    Declares members of a module that are neither parameters nor their optimizer states,
    such as constants.
    """
    for path in paths:
        inside, name = _place(module, path)
        inside.register_buffer(name, None)


class InterruptedRun:
    """
    A run of a program whose caller computes the loss, of the whole batch or of each
    micro-batch. The run begins with the forward pass. `take` returns the results of
    this pass; `resume` takes the gradients of a loss and goes on, up to the forward
    pass of the next micro-batch or to the end. Dropping a run frees its tensors.
    """

    def __init__(self, body, arguments):
        self._body = body
        self._running = body.start(arguments)
        self._given = next(self._running)
        self.results = None
        # Another run may have put other tensors into the modules until this one goes on.
        self._held = [
            x if i in body.places.members else None for i, x in enumerate(arguments)
        ]

    def take(self):
        """
        Returns the results of the forward pass, in the order of `Places.given`, and no
        longer holds them.
        """
        found = self._given[:]
        self._given.clear()
        return found

    def resume(self, gradients):
        """
        Runs the backward pass. `gradients` is a list, in the order of `Places.awaited`,
        which this call empties. At the end, `results` holds the remaining results.
        """
        self._body.hold(self._held)
        devices.use(self._body._device)
        try:
            self._given = self._running.send(_taken(gradients))
        except StopIteration as stop:
            results = stop.value
            self.results = results if isinstance(results, tuple) else (results,)


def _taken(values):
    """Yields the elements of a list, and removes each element from the list before."""
    while values:
        yield values.pop(0)


class RankModule(Scope):
    """
    The program of a rank. `forward` takes and returns only the tensors that no module
    holds; `main` takes and returns all tensors, in the order of the tables. The program
    makes its tensors on the device that is PyTorch's default when the program is made,
    and runs there.
    """

    places = Places((), ())

    def __init_subclass__(cls):
        cls.arguments, cls.results = cls.places.arguments, cls.places.results

    def __init__(self):
        super().__init__()
        self._device = torch.get_default_device()
        self._members = None

    def main(self, *arguments):
        """Runs the program on all of its arguments, and returns all of its results."""
        if self.places.awaited:
            return self._interrupted_main(arguments)
        if self._members is None:
            self._find_members()
        self.hold(arguments)
        devices.use(self._device)
        results = self.forward(*[arguments[i] for i in self._others])
        overwritten = self.places.overwritten
        if not overwritten:
            return results
        rest = iter(results if isinstance(results, tuple) else (results,))
        return tuple(
            arguments[overwritten[i]] if i in overwritten else next(rest)
            for i in range(len(self.results))
        )

    def _interrupted_main(self, arguments):
        places = self.places
        later = [arguments[i] for i in places.awaited]
        pieces = [x.tensor_split(places.parts) if x.dim() else [x] for x in later]
        known = [None if i in places.awaited else x for i, x in enumerate(arguments)]
        running = self.interrupted(known)
        given = []
        for part in range(places.parts):
            given.append(running.take())
            running.resume([x[part] for x in pieces])
        columns = zip(*given, strict=True)
        outputs = [x[0] if places.parts == 1 else torch.cat(x) for x in columns]
        found = dict(zip(places.given, outputs, strict=True))
        others = [i for i in range(len(self.results)) if i not in found]
        found.update(zip(others, running.results, strict=True))
        return tuple(found[i] for i in range(len(self.results)))

    def interrupted(self, arguments):
        """
        Starts a program whose caller computes the loss, and returns the run after its
        first forward pass. In `arguments`, None stands for an argument that the run
        takes later.
        """
        return InterruptedRun(self, arguments)

    def start(self, arguments):
        """
        Starts a program whose caller computes the loss, and returns the run: a
        generator, which yields a list of results and then takes gradients of these
        results. In `arguments`, None stands for an argument that the run takes later.
        """
        if self._members is None:
            self._find_members()
        self.hold(arguments)
        devices.use(self._device)
        awaited = self.places.awaited
        return self.forward(*[arguments[i] for i in self._others if i not in awaited])

    def hold(self, arguments):
        """
        Assigns the tensors in `arguments` to members of modules that have no tensor
        yet.
        """
        held = self._held
        for i, inside, name, is_parameter in self._members:
            value = arguments[i]
            if held[i] is not value:
                held[i] = value
                if is_parameter:
                    value = nn.Parameter(value, requires_grad=False)
                tensors = inside._parameters if is_parameter else inside._buffers
                tensors[name] = inside.__dict__[name] = value

    def _find_members(self):
        members = self.places.members
        self._others = [i for i in range(len(self.arguments)) if i not in members]
        self._held = [None] * len(self.arguments)
        self._members = []
        for i, path in members.items():
            inside, name = _place(self, path)
            self._members.append((i, inside, name, name in inside._parameters))
