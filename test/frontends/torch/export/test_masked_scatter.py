"""What scatters a source to the places of a mask has known shapes, and PyTorch's results."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.thoroughness import sampled
from torch import Tensor, nn

import distir
from distir.errors import DistIRError
from distir.frontends.torch.importer import import_torch
from distir.interpreters.reference import run_program
from distir.program import argument_names, entry_function, result_names


class Rows(nn.Module):
    """Images among words: whole rows of the source, behind a cast and a move."""

    def forward(self, x: Tensor, chosen: Tensor, source: Tensor) -> Tensor:
        mask = (chosen > 0).unsqueeze(-1).expand_as(x).to(x.device)
        return x.masked_scatter(mask, source) * 2


class Elements(nn.Module):
    """Elements of a source that has more of them than there are places."""

    def forward(self, x: Tensor, chosen: Tensor, source: Tensor) -> Tensor:
        return x.masked_scatter((chosen > 0).unsqueeze(-1) & (x > 0), source[1:]) * 2


@pytest.mark.parametrize("make", [Rows, Elements])
def test_masked_scatter(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.randn(3, 4, 5)
    chosen = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 1, 1]])
    given = (x, chosen, torch.randn(6, 5))
    program = import_torch(module, given).module
    assert all(op.name != "onnx.NonZero" for op in program.walk())
    (found,) = run_program(program, [value.numpy() for value in given])
    np.testing.assert_allclose(found, module(*given).numpy())


class Images(nn.Module):
    """Features of images, taken apart and joined as LLaVA does, among embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.projector = nn.Embedding(16, 6), nn.Linear(4, 6)

    def forward(self, ids: Tensor, images: Tensor) -> Tensor:
        features = torch.cat([*self.projector(images).unbind(0)])
        x = self.words(ids)
        x = x.masked_scatter((ids == 0).unsqueeze(-1).to(x.device), features)
        return (x.tanh() * torch.arange(6.0)).sum(-1).square().mean()


IDS = torch.tensor([[0, 5, 0, 7], [8, 0, 0, 1], [2, 3, 0, 0], [0, 0, 1, 2]])


def images(ids: Tensor = IDS, count: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return ids, torch.randn(4, count, 4)


@pytest.mark.parametrize(
    "options", sampled([{"d": 2, "k": 2}, {"d": 2}, {"k": 2}], 3), ids=str
)
def test_equal_features_belong_to_their_sample(options: dict[str, int]) -> None:
    """Micro-batches have the loss and the gradients of the whole batch in PyTorch."""
    module, given = Images(), images()
    wanted = dict(module.named_parameters())
    loss = module(*given)
    gradients = torch.autograd.grad(loss, [*wanted.values()])
    step = distir.import_model(
        *(module, given),
        equal_features=True,
        training=True,
        loss="none",
        optimizer="none",
    )
    split = distir.distribute(step, cluster="cpu", **options).module
    main = entry_function(step.module)
    held = {**step.weights, "ids": given[0].numpy(), "images": given[1].numpy()}
    results = run_program(split, [held[name] for name in argument_names(main)])
    found = dict(zip(result_names(main), results, strict=True))
    np.testing.assert_allclose(found["loss"], loss.detach(), rtol=1e-5)
    for name, gradient in zip(wanted, gradients, strict=True):
        np.testing.assert_allclose(
            found[f"{name}.gradient"], gradient, rtol=1e-4, atol=1e-6
        )


def test_another_number_of_places_is_no_number() -> None:
    """What the user asserts cannot be known from shapes, and is checked where it runs."""
    ids = IDS.clone()
    ids[1, 0] = 0
    module, (_, features) = Images(), images()
    imported = import_torch(module, (IDS, features), equal_features=True)
    held = {**imported.weights, "images": features.numpy()}
    names = argument_names(entry_function(imported.module))
    for given, is_right in ((IDS, True), (ids, False)):
        arguments = [held.get(name, given.numpy()) for name in names]
        (found,) = run_program(imported.module, arguments)
        assert np.isfinite(found) == is_right


def test_micro_batches_need_the_assertion() -> None:
    program = distir.import_model(Images(), images())
    with pytest.raises(
        DistIRError, match=r"equal_features .*if each sample has as many"
    ):
        distir.distribute(program, cluster="cpu", k=2)


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (Images(), (IDS, torch.randn(3, 3, 4)), "takes 9 for 4 samples"),
        (nn.Linear(2, 2), (torch.randn(2, 2),), "this one does not"),
    ],
)
def test_what_has_no_equal_features(
    module: nn.Module, given: tuple[Tensor, ...], message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        import_torch(module, given, equal_features=True)
