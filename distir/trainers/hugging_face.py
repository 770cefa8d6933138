"""transformers' `Trainer` for parallel modules."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer_utils import unwrap_peft_model
from transformers.utils.generic import can_return_loss, find_labels

from distir.errors import DistIRError
from distir.parallel.parallel_module import ParallelModule
from distir.system.output_files import replaced
from distir.trainers.accelerator import Accelerator, plain_optimizer
from distir.trainers.checkpoints import load_states, load_values, save_states

_FOLDER, _SCHEDULER, _ARGUMENTS = "distir", "scheduler.pt", "training_args.bin"
"""
Names in the folder of a checkpoint: the subfolder of values and optimizer states in
parts, and two files that transformers' trainer writes too.
"""

_INSTEAD = {
    "fsdp": "zero=3 of distir.parallelize",
    "deepspeed": "zero=, t= and p= of distir.parallelize",
    "parallelism_config": "d=, t= and zero= of distir.parallelize",
    "fp16": 'dtype="f16" of distir.parallelize, or bf16=True',
    "torch_compile": "compiled=True of distir.parallelize",
    "gradient_checkpointing": 'checkpoint="full" of distir.parallelize',
    "activation_checkpointing": 'checkpoint="full" of distir.parallelize',
    "auto_find_batch_size": "a batch size that fits (`distir simulate` says what memory it takes)",
    "use_liger_kernel": "compiled=True or kernels= of distir.parallelize",
    "neftune_noise_alpha": "noise that the forward of the module adds",
    "label_smoothing_factor": "a module whose forward has the loss that is to be used",
}
"""
Training arguments that have no effect on a program, each with an option that has it.
"""


class TrainerMixin:
    """
    Makes a trainer of transformers train a parallel module. `Trainer` is `class
    Trainer(TrainerMixin, transformers.Trainer)`; use the mixin in the same way for a
    class derived from transformers' trainer.

    The `forward` of the parallelized module must return its loss, as models of
    transformers do with labels (`loss=None` of `parallelize`). Losses concern the
    global batch, which has `per_device_train_batch_size` samples for each of the
    `data_ranks` parts. Ranks that differ only in t or p get the same samples. A
    checkpoint holds the whole model, for `from_pretrained`. Its folder `distir` holds
    the values and the optimizer's states in parts; `train` resumes from the checkpoint,
    also under a different plan.

    Raises DistIRError for training arguments that would have no effect on a parallel
    module.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        model = kwargs.get("model", args[0] if args else None)
        arguments = kwargs.get("args", args[1] if len(args) > 1 else None)
        if not isinstance(model, ParallelModule):
            raise DistIRError(
                f"{type(self).__name__}: the model is {type(model).__name__}, no parallel module; "
                f"give what distir.parallelize returns, or train it with transformers.Trainer"
            )
        _check(type(self).__name__, arguments, kwargs, model)
        self.model = self._parallel = model
        super().__init__(*args, **kwargs)
        # What transformers' trainer asks the class of a model, it has to ask that of the source.
        source = unwrap_peft_model(model.source)
        named = find_labels(type(source))
        self.label_names = self.args.label_names or named
        self.can_return_loss = can_return_loss(type(source))
        self.model_accepts_loss_kwargs = _counts_items(source)
        loss = LOSS_MAPPING.get(str(getattr(source, "loss_type", None)))
        config = getattr(source, "config", None)
        has_decoder = getattr(config, "is_encoder_decoder", False)
        self._loss_shifts_labels = loss is ForCausalLMLoss and not has_decoder
        # Of some models, such as GPT-2, transformers counts a label more than the loss has.
        self._predicts_next = self._loss_shifts_labels or (
            _calls_loss_function(source) and source.loss_function is ForCausalLMLoss
        )

    # What transformers' trainer asks

    args: Any
    accelerator: Any
    data_collator: Any
    lr_scheduler: Any
    optimizer: Any
    processing_class: Any
    current_gradient_accumulation_steps: int
    _signature_columns: list[str] | None
    _train_batch_size: int

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        self._accelerator_args = super()._build_accelerator_args(**kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        return self._accelerator_args

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the accelerator of the trainer: `distir.trainers.Accelerator`."""
        super().create_accelerator_and_postprocess()  # pyright: ignore[reportAttributeAccessIssue]
        self.accelerator = Accelerator(**self._accelerator_args)
        self.accelerator.prepare_model(self._parallel)
        self.gather_function = functools.partial(
            self.accelerator.gather_for_metrics,
            use_gather_object=self.args.eval_use_gather_object,
        )

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            source = unwrap_peft_model(self._parallel.source)
            parameters = inspect.signature(source.forward).parameters
            self._signature_columns = [
                *parameters,
                *{"label", "label_ids", *self.label_names},
            ]

    def get_total_train_batch_size(self, args: Any) -> int:
        """
        Returns the number of samples in one step of the optimizer, over all ranks.
        """
        parts = self._parallel.data_ranks
        return self._train_batch_size * args.gradient_accumulation_steps * parts

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """
        Returns the loss of the global batch; with `return_outputs`, the loss and the
        output. `num_items_in_batch` is the number of labels in all batches of a step.
        If this number is given, the losses of these batches add up to the mean over all
        labels.
        """
        output = model(**inputs)
        if model.training:
            output = {"loss": output}
        loss = output["loss"] if isinstance(output, dict) else output[0]
        several = model.training and self.current_gradient_accumulation_steps > 1
        differ = self._predicts_next != self._loss_shifts_labels
        if num_items_in_batch is not None and (several or differ):
            share = self._items(inputs).double() / num_items_in_batch
            loss = loss * share.to(loss.dtype)
        return (loss, output) if return_outputs else loss

    def _items(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Returns the number of labels that count in the loss of a global batch."""
        labels = inputs.get("shift_labels")
        if labels is None:
            labels = inputs["labels"]
            if self._predicts_next:
                labels = labels[..., 1:]
        return self.accelerator.gather(labels.ne(-100).sum()).sum()

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        return self._parallel.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> torch.Tensor:
        if grad_norm is None:
            return self._parallel.clip_grad_norm_(float("inf"))
        return grad_norm

    # Saving and resuming

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        given = {} if state_dict is None else {"state_dict": state_dict}
        if not hasattr(self._parallel.source, "save_pretrained"):
            whole = state_dict or self._parallel.whole_state_dict()
            super()._save(output_dir, whole)  # pyright: ignore[reportAttributeAccessIssue]
            return
        self._parallel.save_pretrained(folder, **given)
        if not self.args.should_save:
            return
        processing = self.processing_class
        if processing is None:
            processing = getattr(self.data_collator, "tokenizer", None)
        if processing is not None:
            processing.save_pretrained(folder)
        _written(self.args, folder / _ARGUMENTS)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        optimizers = [plain_optimizer(self.optimizer)]
        save_states(Path(output_dir, _FOLDER), [self._parallel], optimizers)
        if self.args.should_save:
            _written(self.lr_scheduler.state_dict(), Path(output_dir, _SCHEDULER))

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        folder = Path(resume_from_checkpoint, _FOLDER)
        load_values(folder, [self._parallel], type(self).__name__)

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)  # pyright: ignore[reportAttributeAccessIssue]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        optimizers = [plain_optimizer(self.optimizer)]
        folder = Path(checkpoint, _FOLDER)
        load_states(folder, [self._parallel], optimizers, type(self).__name__)
        state = torch.load(Path(checkpoint, _SCHEDULER), weights_only=True)
        self.lr_scheduler.load_state_dict(state)


class Trainer(TrainerMixin, transformers.Trainer):  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
    """
    `transformers.Trainer` for a parallel module. `TrainerMixin` describes the
    differences.
    """


def _check(who: str, args: Any, given: dict[str, Any], model: ParallelModule) -> None:
    """
    Raises DistIRError for training arguments that have no effect on a parallel module,
    and for a module that takes labels after its inputs. `who` is the class of the
    trainer, and `given` its keyword arguments.
    """
    for name, instead in _INSTEAD.items():
        if args is not None and getattr(args, name, None):
            raise DistIRError(
                f"{who}: {name} of TrainingArguments changes how a module runs, and a parallel "
                f"module runs its program; leave it out, and take {instead}"
            )
    if given.get("compute_loss_func") is not None:
        raise DistIRError(
            f"{who}: compute_loss_func takes the output of the module, and the program of a "
            f"parallel module returns its loss; leave it out, and give the loss to "
            f"distir.parallelize, in the forward of the module"
        )
    if args is not None and args.train_sampling_strategy == "batch_rebalance":
        raise DistIRError(
            f"{who}: train_sampling_strategy='batch_rebalance' divides samples over all "
            f"processes, and those that differ in t or p need the same ones; take "
            f"'group_by_length'"
        )
    if args is not None and not args.average_tokens_across_devices:
        raise DistIRError(
            f"{who}: average_tokens_across_devices=False takes the mean over the labels of each "
            f"process, and the loss of a parallel module is the mean over those of the global "
            f"batch; leave it out"
        )
    if model.takes_labels:
        raise DistIRError(
            f"{who}: the module was parallelized with a loss, which takes labels behind the "
            f"inputs, and a trainer gives them by name; parallelize a module whose forward takes "
            f"the labels and returns its loss, as models of transformers do, without loss="
        )


def _counts_items(source: nn.Module) -> bool:
    """
    Whether transformers' trainer averages the loss of `source` over all labels of a
    step.
    """
    if hasattr(source, "accepts_loss_kwargs"):
        return bool(source.accepts_loss_kwargs)
    parameters = inspect.signature(source.forward).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _calls_loss_function(source: Any) -> bool:
    """Whether the `forward` of a transformers model calls its `loss_function`."""
    forward = inspect.unwrap(type(source).forward)
    return "loss_function" in forward.__code__.co_names


def _written(state: Any, path: Path) -> None:
    """
    Writes `state` to `path` as `torch.save` does. An interrupted write leaves no
    partial file.
    """
    with replaced(path) as partial:
        torch.save(state, partial)
