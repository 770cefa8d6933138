"""Shardings between JAX's own files of StableHLO and distributed programs, both ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder
pytest.importorskip("flax")

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from support import jax_models as models

from distir.errors import DistIRError
from distir.exports.sdy import write_shardings
from distir.facade.model_program import ModelProgram
from distir.facade.programs import distribute as distribute_program
from distir.frontends.stablehlo.file import import_stablehlo_file
from distir.jax import distribute

_COLLECTIVE = re.compile(
    r"= (\S+) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)"
)


@pytest.fixture
def no_shardy() -> Iterator[None]:
    """Lets JAX write shardings of GSPMD."""
    jax.config.update("jax_use_shardy_partitioner", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_use_shardy_partitioner", True)
    jax.clear_caches()


def lowered_step() -> Any:
    """Returns a training step with a mesh of JAX, a constraint inside, and a state."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    def sharded(*axes: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*axes))

    def loss(p: Any, batch: Any) -> Any:
        h = jax.nn.relu(batch["x"] @ p["w1"])
        h = jax.lax.with_sharding_constraint(h, sharded("data", "model"))
        return jnp.mean((h @ p["w2"] - batch["y"]) ** 2)

    def step(state: Any, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads), value

    def of(*shape: int, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharded(*axes))

    state = {
        "w1": of(16, 64, axes=(None, "model")),
        "w2": of(64, 16, axes=("model", None)),
    }
    batch = {name: of(8, 16, axes=("data",)) for name in ("x", "y")}
    return jax.jit(step, donate_argnums=0).lower(state, batch)


def both_forms(lowered: Any) -> list[str]:
    operation = lowered.compiler_ir().operation
    generic = operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    return [lowered.as_text(debug_info=True), generic]


def imported(text: str, folder: Path) -> Any:
    path = folder / "step.mlir"
    path.write_text(text)
    return import_stablehlo_file(path)


def distributed(made: Any, **degrees: int) -> ModelProgram:
    program = ModelProgram(made.module, arrays=made.weights)
    return distribute_program(program, cluster="cpu", devices=8, **degrees)


def test_shardy_is_read_in_both_forms_and_written_back(tmp_path: Path) -> None:
    pretty, generic = both_forms(lowered_step())
    made = imported(pretty, tmp_path)
    assert "axis data (4) is -d, model (2) is -t" in made.notes[0]
    assert str(made.module) == str(imported(generic, tmp_path).module)
    assert str(made.module).count("dist.constrain") == 2
    dist = distributed(made, d=4, t=2)
    found = write_shardings(dist.module, pretty, "step.mlir")
    assert '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"t"}]>}' in found.text.replace(
        "jax.buffer_donor = true, ", ""
    )
    again = imported(found.text, tmp_path)
    repeated = distributed(again, d=4, t=2)
    assert str(repeated.module) == str(dist.module)
    several = distributed(again, d=2, t=2, k=2)
    with pytest.raises(DistIRError, match="micro-batches"):
        write_shardings(several.module, pretty, "step.mlir")


@pytest.mark.usefixtures("no_shardy")
def test_gspmd_gives_the_same_requests(tmp_path: Path) -> None:
    lowered = lowered_step()
    first, second = (imported(text, tmp_path) for text in both_forms(lowered))
    assert str(first.module) == str(second.module)
    assert "axis0 (4) is -d, axis1 (2) is -t" in first.notes[0]
    assert str(first.module).count("dist.constrain") == 2


def collectives_of(text: str) -> Counter[tuple[str, str]]:
    return Counter(_COLLECTIVE.findall(text))


def partitioned(text: str, devices: int) -> str:
    """Compiles a module with shardings as XLA partitions it, and returns its HLO."""
    from jax._src import compiler, xla_bridge
    from jaxlib import _jax

    backend = xla_bridge.get_backend("cpu")
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=devices,
        device_assignment=np.arange(devices).reshape(1, devices),
    )
    used = _jax.DeviceList(tuple(backend.devices()[:devices]))
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        made = compiler.backend_compile_and_load(backend, module, used, options, [])
    return made.hlo_modules()[0].to_string()


@pytest.mark.parametrize(
    "name, degrees",
    [
        ("mlp", {"d": 2, "t": 2}),
        pytest.param("gpt", {"d": 4, "t": 2, "zero": 1}, marks=pytest.mark.slow),
        pytest.param("gpt_scan", {"d": 2, "t": 4}, marks=pytest.mark.slow),
    ],
)
def test_what_is_written_is_partitioned_like_the_plan(
    name: str, degrees: dict[str, int]
) -> None:
    """The shardings inside change nothing: XLA's collectives are those of `jax.jit`."""
    step = models.MODELS[name]()
    plan = distribute(*step, cluster="cpu", devices=8, **degrees)
    text = (
        jax.jit(step.function, keep_unused=True)
        .lower(*step.args)
        .as_text(debug_info=True)
    )
    found = write_shardings(plan.program.module, text, name)
    assert int(found.notes[0].split()[1]) > 10
    run = jax.jit(
        step.function,
        in_shardings=plan.in_shardings,
        out_shardings=plan.out_shardings,
    )
    wanted = collectives_of(run.lower(*step.args).compile().as_text())
    own = collectives_of(partitioned(found.text, len(plan.layout_mesh.devices)))
    assert own == wanted and own
