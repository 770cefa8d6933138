"""
Trains: runs a program step by step. Results of a step are arguments of the next step.
"""

import importlib
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from .. import runtime
from . import batches, initial
from .logs import Log
from .settings import StepSettings


@dataclass(frozen=True)
class Options:
    """
    The options of a training.

    - `steps`: the last step; the first step is 1.
    - `seed`: the seed of parameters that no file contains, and of the order of samples.
    - `folder`: the folder of checkpoints; `save_every`: the number of steps between two
      checkpoints (0: only one, after the last step); `resume`: the step whose
      checkpoint the training continues from, `latest` for the latest checkpoint, or
      `if-any` for the latest one if there is one.
    - `settings`: the settings of the optimizer in each step.
    - `data`: the source of inputs and labels (see `batches.read`; empty: the sources of
      the program's arguments); `workers`: the number of processes that load data.
    - `eval_every`: the number of steps between two evaluations on `eval_data` (0: no
      evaluation).
    - `log`, `tensorboard`: a file and a folder for reports.
    - `gathers`: whether process 0 gets all final weights at the end.
    """

    steps: int
    seed: int = 0
    folder: str = ""
    save_every: int = 0
    resume: str = ""
    settings: StepSettings = field(default_factory=StepSettings)
    data: tuple = ()
    workers: int = 0
    eval_every: int = 0
    eval_data: tuple = ()
    log: str = ""
    tensorboard: str = ""
    gathers: bool = True


def train(program, backend, sources, options, timeout_s=600.0, init_method="env://"):
    """
    Runs this process's part of the training. Returns, on rank 0, the results that
    update no argument, and the final weights if `options.gathers`, by name. A scalar
    result has one number per step of this run.

    If `options` name no data, inputs and labels come from `sources`. They have the
    program's shape, or an additional first dimension: then step s takes row s - 1, and
    the first row follows the last one.
    """
    _check_settings(program, options.settings)
    with runtime.processes(program, backend, timeout_s, init_method) as process:
        return _Training(program, process, sources, options).run()


def _check_settings(program, wanted):
    """
    Raises ProgramError if settings are given for a program without a learning rate, or
    if the rate would decay to a value above its start.
    """
    known = {spec.setting for spec in program.ARGUMENTS}
    if wanted.changes() and "learning_rate" not in known:
        raise runtime.ProgramError(
            "the program has no learning rate that could be set: its optimizer is not one "
            "of DistIR's; make the training step with `distir build --training` or `distir "
            "import --training`"
        )
    for spec in program.ARGUMENTS:
        full = spec.default if spec.setting == "learning_rate" else None
        if full is not None and wanted.decay != "none" and wanted.least > full:
            raise runtime.ProgramError(
                f"--min-lr {wanted.least:g} is more than {full:g}, the learning rate of the "
                f"program, which is to fall to it; give less"
            )


class _Training:
    """
    One process's part of a training: its program, data, arguments and checkpoints.
    """

    def __init__(self, program, process, sources, options):
        self.program, self.sources, self.options = program, sources, options
        self.rank, self.device, self.body = process
        # These numbers are exchanged by the hosts, not by the devices.
        self.host_group = (
            None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
        )
        own = program.RANKS[self.rank].program
        self.arguments = [program.ARGUMENTS[i] for i in own.arguments]
        part = batches.BatchPart.of(program, self.rank)
        read = (options.seed, options.workers)
        self.data = batches.read(part, options.data, sources, *read)
        self.evaluation = None
        if options.eval_every:
            data = batches.read(part, options.eval_data, (), *read)
            self.evaluation = _Evaluation(self, data)
        self.saver = None
        if options.folder:
            from ..storage import (
                checkpoints,
            )  # takes long to load, and most runs need none

            self.saver = checkpoints.Saver(options.folder, program, self.rank)
        try:
            self.held, self.first = self._start()
        except BaseException:
            self.close()
            raise

    def close(self):
        """
        Releases the lock on the folder of checkpoints, so that other trainings can use
        it.
        """
        if self.saver is not None:
            self.saver.close()

    def run(self):
        """Runs all steps and returns the result of `train`."""
        try:
            return self._run()
        finally:
            self.close()

    def _run(self):
        options, history = self.options, {}
        log = Log(options.log, options.tensorboard)
        self._tell_repetition()
        given = self.data.batches(self.first)
        for step in range(self.first, options.steps + 1):
            batch = self.next_of(given, self.data)
            if batch is None:
                raise self._end_of_data(step - 1)
            reported = self._step(step, batch)
            for name, value in reported.items():
                history.setdefault(name, []).append(value)
            log.step(step, options.steps, numbers(reported), **self._rates(step))
            due = options.save_every and step % options.save_every == 0
            if self.saver and (due or step == options.steps):
                self.saver.save(step, self._kept())
            if self.evaluation and step % options.eval_every == 0:
                log.evaluation(step, self.evaluation.run())
        if self.saver:
            self.saver.finish()
        log.close()
        whole = {
            name: torch.stack(values) if values[-1].ndim == 0 else values[-1]
            for name, values in history.items()
        }
        return whole | (self._final_weights() if options.gathers else {})

    def next_of(self, given, data):
        """
        Returns the next batch of iterator `given`. Returns None on all processes if the
        data ends on one process.
        """
        takes = bool(data.part.takes)
        batch = next(given, None) if takes else {}
        if data.is_endless:
            return batch
        there = torch.tensor(batch is not None, dtype=torch.int32, device="cpu")
        dist.all_reduce(there, dist.ReduceOp.MIN, group=self.host_group)
        return batch if there.item() else None

    def arguments_of(self, batch, step):
        """Returns the arguments of a step, in the order of the program's arguments."""
        return [
            self.options.settings.at(step, spec)
            if spec.default is not None
            else batch[spec.name].to(self.device)
            if spec.role in batches.ROLES
            else self.held[spec.name]
            for spec in self.arguments
        ]

    def _step(self, step, batch):
        """
        Runs a step and replaces the arguments that its results update. Returns all
        other results by name, on rank 0.
        """
        results = runtime.results_of(self.body, self.arguments_of(batch, step))
        reported = {}
        specs = dict(enumerate(self.program.RESULTS))
        own = self.program.RANKS[self.rank].program
        for index, value in zip(own.results, results, strict=True):
            spec = specs[index]
            if spec.updates:
                self.held[spec.updates] = value
            else:
                reported[index] = value
        kept = {i: spec for i, spec in specs.items() if not spec.updates}
        return runtime.collect(kept, reported, self.program.MESHES, self.rank)

    def _rates(self, step):
        """Returns the learning rates of a step, by the name of the argument."""
        return {
            spec.name: self.options.settings.at(step, spec)
            for spec in self.program.ARGUMENTS
            if spec.setting == "learning_rate"
        }

    def _tell_repetition(self):
        """
        Reports if there are fewer batches than steps, so that batches are repeated.
        """
        steps = self.options.steps
        if not self.data.is_endless or self.data.length >= steps:
            return
        if self.data.length == 1:
            text = f"there is one batch, which each of the {steps} steps takes"
        else:
            times = f"{steps / self.data.length:.3g}"
            text = (
                f"the data has {self.data.length} batches, so that {steps} steps go "
                f"through it {times} times"
            )
        runtime.report(f"note: {text}; --data gives more")

    def _end_of_data(self, done):
        """
        Saves a checkpoint of the finished steps, and returns the error for data that
        ended early.
        """
        text = (
            f"the data of {self.data.source} ended after {done} batches, before step "
            f"{done + 1} of {self.options.steps}; give more of it, or ask for --steps {done}"
        )
        if self.saver and done >= self.first:
            self.saver.save(done, self._kept())
            self.saver.finish()
            text += f"; the checkpoint of step {done} is complete"
        return runtime.ProgramError(text)

    def _start(self):
        """
        Returns the arguments before the first step, without inputs and labels, and the
        first step to run. Raises ProgramError if the checkpoint has all steps already.
        """
        checkpoint, first = self._checkpoint(), 1
        if checkpoint is not None:
            first = checkpoint.step + 1
            runtime.report(f"going on from the checkpoint of step {checkpoint.step}")
            if first > self.options.steps:
                raise runtime.ProgramError(
                    f"the checkpoint is of step {checkpoint.step} already, so that nothing "
                    f"is left to do up to step {self.options.steps}; ask for more steps"
                )
        runtime.report("loading arguments")
        self._tell_of_new_parameters(checkpoint)
        held = {}
        for spec in self.arguments:
            mesh = self.program.MESHES.get(spec.mesh)
            if spec.role in (*batches.ROLES, "setting"):
                continue
            if checkpoint is not None and spec.role in runtime.KEPT_ROLES:
                continue
            if any(runtime.holds(spec, source) for source in self.sources):
                value = runtime.argument(spec, mesh, self.rank, self.sources)
            else:
                value = self._new(spec, mesh)
            held[spec.name] = runtime.placed(spec, value, self.device)
        if checkpoint is not None:
            parts = checkpoint.parts(self.arguments, self.program.MESHES)
            for spec in self.arguments:
                if spec.name in parts:
                    part = parts[spec.name]
                    held[spec.name] = runtime.placed(spec, part, self.device)
        return held, first

    def _tell_of_new_parameters(self, checkpoint):
        """
        Reports parameters that are drawn at random because the given weights do not
        contain them. A checkpoint has all parameters.
        """
        parameters = [s for s in self.program.ARGUMENTS if s.role == "parameter"]
        new = [
            spec.name
            for spec in parameters
            if not any(runtime.holds(spec, source) for source in self.sources)
        ]
        if checkpoint is None and 0 < len(new) < len(parameters):
            runtime.report(
                f"the weights lack {len(new)} of {len(parameters)} parameters, such as "
                f"{new[0]!r}, which are drawn"
            )

    def _checkpoint(self):
        """
        Returns the checkpoint to continue from, or None for a new training. Raises
        ProgramError if the folder has checkpoints and the training does not resume.
        """
        options = self.options
        if not options.folder:
            return None
        from ..storage import checkpoints

        known = checkpoints.steps_in(options.folder)
        if options.resume and (known or options.resume != "if-any"):
            wanted = "latest" if options.resume == "if-any" else options.resume
            return checkpoints.Checkpoint(options.folder, wanted, self.rank)
        if known:
            raise runtime.ProgramError(
                f"{options.folder} has checkpoints already (the last one of step "
                f"{known[-1]}); go on from there with --resume, or choose another folder"
            )
        return None

    def _new(self, spec, mesh):
        """
        Returns the start value of an argument that no file contains. Raises
        ProgramError unless the argument is a parameter or a state.
        """
        sources, seed = self.sources, self.options.seed
        if spec.role == "parameter":
            return initial.parameter(spec, mesh, self.rank, seed)
        if spec.role != "state":  # says what is missing
            return runtime.argument(spec, mesh, self.rank, sources)
        if spec.initial != "copy":
            return torch.zeros(runtime.local_shape(spec, mesh), dtype=spec.dtype)
        # A copy of a parameter in higher precision, which may be split differently.
        copied = next(a for a in self.program.ARGUMENTS if a.name == spec.of)
        named = replace(
            spec, name=copied.name, initial=copied.initial, repacked=copied.repacked
        )
        narrow = replace(named, dtype=copied.dtype)
        if any(runtime.holds(copied, source) for source in sources):
            own = runtime.argument(narrow, mesh, self.rank, sources)
            return own.to(spec.dtype, copy=True)  # steps overwrite both
        return initial.parameter(narrow, mesh, self.rank, seed).to(spec.dtype)

    def _kept(self):
        """Returns this process's parts of the arguments that checkpoints contain."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()  # copies of states to the host may be under way
        return [
            (spec, self.held[spec.name])
            for spec in self.arguments
            if spec.role in runtime.KEPT_ROLES
        ]

    def _final_weights(self):
        """
        Returns, on rank 0, the whole parameters and all other weights that the steps
        update, such as running statistics.
        """
        runtime.report("gathering parameters")
        specs = {
            i: spec
            for i, spec in enumerate(self.program.ARGUMENTS)
            if spec.role == "parameter"
            or (
                spec.role == "state"
                and any(runtime.holds(spec, source) for source in self.sources)
            )
        }
        own = {i: self.held[s.name] for i, s in specs.items() if s.name in self.held}
        return runtime.collect(specs, own, self.program.MESHES, self.rank)


class _Evaluation:
    """Runs the forward program on evaluation data, without updates."""

    def __init__(self, training, data):
        self.training, self.data = training, data
        package = __name__.rpartition(".")[0]
        self.program = importlib.import_module(f"{package}.evaluation_program")
        rank, device = training.rank, training.device
        self.body = runtime.body_of(self.program, rank, device)

    def run(self):
        """
        Returns, on rank 0, the means over all batches of the results that are numbers.
        Raises ProgramError if the data has no batch.
        """
        training, total, count = self.training, {}, 0
        own = self.program.RANKS[training.rank].program
        given = self.data.once() if self.data.part.takes else iter(())
        while count < self.data.length if self.data.is_endless else True:
            batch = training.next_of(given, self.data)
            if batch is None:
                break
            arguments = training.arguments_of(batch, training.first)
            results = runtime.results_of(self.body, arguments)
            reported = dict(zip(own.results, results, strict=True))
            specs = dict(enumerate(self.program.RESULTS))
            whole = runtime.collect(specs, reported, self.program.MESHES, training.rank)
            for name, value in numbers(whole).items():
                total[name] = total.get(name, 0.0) + value
            count += 1
        if not count:
            raise runtime.ProgramError(
                f"the data of {self.data.source} holds no batch to evaluate; give a "
                f"function whose iterable can be read again"
            )
        return {name: value / count for name, value in total.items()}


def numbers(values):
    """
    Returns the entries of `values` that have one element, by name, as Python numbers.
    """
    return {name: v.item() for name, v in values.items() if v.numel() == 1}
