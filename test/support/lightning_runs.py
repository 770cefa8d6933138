"""Trainings with Lightning, on one process and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from distir.parallel.parallelize import parallelize
from support.parallel_shapes import message_of
from support.trainer_models import (
    BATCH,
    Chain,
    Sentences,
    example,
    under_torchrun,
    values,
)


class Training(lightning.LightningModule):
    """A training of the chain of words; with `options`, in parallel."""

    def __init__(self, options: dict[str, Any] | None) -> None:
        super().__init__()
        self.options = options
        self.chain: Any = None
        self.losses: list[float] = []
        self.norms: list[float] = []

    def configure_model(self) -> None:
        if self.chain is not None:
            return
        if self.options is None:
            self.chain = Chain()
        else:
            self.chain = parallelize(Chain(), (), example(), **self.options)
        self.chain.train()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        output = self.chain(**batch)
        loss = output["loss"] if isinstance(output, dict) else output
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        loss = self.chain(**batch)["loss"]
        self.log("validation", loss, batch_size=BATCH, sync_dist=True)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        gradients = [p.grad for p in self.chain.parameters() if p.grad is not None]
        if gradients:
            norm = nn.utils.get_total_norm(gradients)
            self.norms.append(float(getattr(norm, "full_tensor", lambda: norm)()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
        return [optimizer], [rate]


def loaders(
    parts: int, shuffle: bool = True
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    train = DataLoader(Sentences(43), BATCH // parts, shuffle=shuffle)
    return train, DataLoader(Sentences(13, seed=1), BATCH // parts)


def trainer(folder: Path, **more: Any) -> lightning.Trainer:
    from lightning.pytorch.callbacks import ModelCheckpoint

    saves = ModelCheckpoint(folder, "epoch{epoch}", save_top_k=-1)
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.3,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **more,
    )


def trained_plainly(folder: Path) -> dict[str, Any]:
    module = Training(None)
    made = trainer(folder, devices=1)
    lightning.seed_everything(3)
    made.fit(module, *loaders(1))
    return _found(made, module)


def trained(
    folder: Path, options: dict[str, Any], shuffle: bool = True, resume: Any = None
) -> Any:
    under_torchrun()
    from distir.trainers import DistIRStrategy

    module = Training(options)
    world = torch.distributed.get_world_size()
    made = trainer(folder, devices=world, strategy=DistIRStrategy())
    lightning.seed_everything(3)
    made.fit(module, *loaders(options.get("d", 1), shuffle), ckpt_path=resume)
    return _found(made, module)


def _found(made: lightning.Trainer, module: Training) -> dict[str, Any]:
    return {
        "losses": module.losses,
        "norms": module.norms,
        "validation": float(made.callback_metrics["validation"]),
        "values": values(module),
    }


def refused(folder: Path) -> dict[str, str]:
    """The messages for what Lightning cannot do with a parallel module."""
    under_torchrun()
    from distir.trainers import DistIRStrategy

    found: dict[str, str] = {}
    for name, value in (("precision", "64-true"), ("sync_batchnorm", True)):
        made = trainer(folder, devices=2, strategy=DistIRStrategy(), **{name: value})
        found[name] = message_of(
            lambda made=made: made.fit(Training(dict(d=2)), *loaders(2))
        )
    made = trainer(folder, devices=2, strategy=DistIRStrategy())
    found["plain"] = message_of(lambda: made.fit(Training(None), *loaders(2)))
    return found
