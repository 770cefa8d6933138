"""Trainings with transformers' trainer, on one process and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from distir.errors import DistIRError
from support.trainer_models import (
    BATCH,
    Chain,
    Sentences,
    parallel_chain,
    under_torchrun,
    values,
)


def arguments(folder: Path, parts: int, **more: Any) -> Any:
    from transformers import TrainingArguments

    given = dict(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH // parts,
        per_device_eval_batch_size=BATCH // parts,
        num_train_epochs=2,
        learning_rate=0.1,
        weight_decay=0.3,
        optim="sgd",
        max_grad_norm=0.2,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    return TrainingArguments(**(given | more))


def found(trainer: Any, module: Any) -> dict[str, Any]:
    """The log, the metrics and the parameters after a training."""
    history = trainer.state.log_history
    return {
        "loss": [row["loss"] for row in history if "loss" in row],
        "norm": [row["grad_norm"] for row in history if "grad_norm" in row],
        "evaluated": [row["eval_loss"] for row in history if "eval_loss" in row],
        "rate": [row["learning_rate"] for row in history if "learning_rate" in row],
        "values": values(module),
    }


def accuracy(prediction: Any) -> dict[str, float]:
    guesses, labels = prediction.predictions.argmax(-1), prediction.label_ids
    counts = labels != -100
    return {
        "accuracy": float((guesses == labels)[counts].mean()),
        "rows": float(len(labels)),
    }


def trained_plainly(folder: Path, kind: type[Chain], more: Any) -> dict[str, Any]:
    from transformers import Trainer

    module = kind()
    trainer = Trainer(
        model=module,
        args=arguments(folder, 1, **more),
        train_dataset=Sentences(22),
        eval_dataset=Sentences(13, seed=1),
        compute_metrics=accuracy,
    )
    trainer.train()
    return found(trainer, module) | {"metrics": trainer.evaluate()}


def trained(
    folder: Path, options: dict[str, Any], kind: type[Chain], more: Any, resume: Any
) -> dict[str, Any]:
    under_torchrun()
    from distir.trainers import Trainer

    module = parallel_chain(options, kind)
    trainer = Trainer(
        model=module,
        args=arguments(folder, module.data_ranks, **more),
        train_dataset=Sentences(22),
        eval_dataset=Sentences(13, seed=1),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=resume)
    result = found(trainer, module) | {"metrics": trainer.evaluate()}
    trainer.save_model(str(folder / "saved"))
    dist.barrier()
    return result


def refused(folder: Path) -> dict[str, str]:
    """The messages for arguments of a training that would have no effect."""
    under_torchrun()
    import transformers

    from distir.trainers import Trainer

    module = parallel_chain(dict(d=2))
    messages: dict[str, str] = {}
    for name, value in {
        "fsdp": True,
        "gradient_checkpointing": True,
        "label_smoothing_factor": 0.1,
        "torch_compile": True,
    }.items():
        messages[name] = _message(
            lambda more=dict([(name, value)]): Trainer(
                model=module, args=arguments(folder, 2, **more), eval_dataset=[]
            )
        )
    args = arguments(folder, 2)
    messages["plain"] = _message(
        lambda: Trainer(model=torch.nn.Linear(2, 2), args=args, eval_dataset=[])
    )
    theirs = transformers.Trainer(
        model=module, args=args, train_dataset=Sentences(8), eval_dataset=Sentences(8)
    )
    messages["theirs"] = _message(theirs.train)
    messages["ddp"] = _message(
        lambda: torch.nn.parallel.DistributedDataParallel(module)
    )
    messages["type"] = _message(module.half)
    return messages


def _message(call: Any) -> str:
    try:
        call()
    except DistIRError as error:
        return str(error)
    return "no error"
