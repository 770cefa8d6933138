"""
Reads and writes functions of torchtitan's `config_registry`. The Python code is parsed,
never run.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from distir.errors import DistIRError
from distir.exports.systems.system import Document

_P = "parallelism."
_T = "training."

_SECTIONS = {
    "TrainingConfig": _T,
    "ParallelismConfig": _P,
    "CompileConfig": "compile.",
}

_AC = {"FullAC": "full", "SelectiveAC": "selective"}

MOVED = (
    *("data_parallel_replicate_degree", "data_parallel_shard_degree"),
    *("pipeline_parallel_schedule", "enable_async_tensor_parallel"),
)


def python_options(text: str, path: str, wanted: str) -> Document:
    """
    Returns the options in the function `wanted` of a `config_registry` file. If the
    file has only one such function, `wanted` may be "". Options are keyword arguments,
    with literal values, of TrainingConfig, ParallelismConfig, CompileConfig, FullAC and
    SelectiveAC, and the flavor given to model_registry. Raises DistIRError for a file
    that cannot be parsed, an unknown function, or a computed value.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise DistIRError(f"{path}, line {error.lineno}: {error.msg}") from error
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(_called(call) == "Trainer.Config" for call in ast.walk(node))
    }
    if not wanted and len(functions) == 1:
        wanted = next(iter(functions))
    if wanted not in functions:
        raise DistIRError(
            f"{path} has {len(functions)} functions that return a Trainer.Config"
            f"{': ' + ', '.join(functions) if functions else ''}; choose one with "
            f"--set config=NAME"
        )
    values: dict[str, Any] = {"model.name": wanted.split("_")[0]}
    where: dict[str, str] = {}
    values["activation_checkpoint.mode"] = "none"
    for call in ast.walk(functions[wanted]):
        if not isinstance(call, ast.Call):
            continue
        name = _called(call) or ""
        if name == "model_registry" and call.args:
            flavor = call.args[0]
            if not isinstance(flavor, ast.Constant):
                raise DistIRError(
                    f"{path}, line {flavor.lineno}: the flavor of the model is computed, and "
                    f"Python is not run here; write it as text"
                )
            values["model.flavor"] = flavor.value
        if name.removesuffix(".Config") in _AC:
            values["activation_checkpoint.mode"] = _AC[name.removesuffix(".Config")]
            values["activation_checkpoint.selective_ac_option"] = "op"
        section = _SECTIONS.get(name)
        for keyword in call.keywords if section else ():
            option = f"{section}{keyword.arg}"
            where[option] = f"{path}, line {keyword.value.lineno}: {option}"
            try:
                values[option] = ast.literal_eval(keyword.value)
            except ValueError as error:
                raise DistIRError(
                    f"{where[option]} is computed, and Python is not run here; write its "
                    f"value, or give it with --set {option}=VALUE"
                ) from error
    return Document(path, values, where)


def _called(node: ast.AST) -> str | None:
    """
    Returns the dotted name of the function that `node` calls, or None if `node` is not
    a call.
    """
    return ast.unparse(node.func) if isinstance(node, ast.Call) else None


def python_text(values: Mapping[str, Any]) -> str:
    """
    Returns the source of a Python function that returns the configuration. Raises
    DistIRError for options that Python configurations cannot express.
    """
    name, flavor = values["model.name"], values["model.flavor"]
    if values.get("model.converters"):
        raise DistIRError(
            "float8 is a converter of the model in torchtitan's Python configurations; "
            "write a .toml file, or add it to model_registry"
        )
    parts: list[str] = []
    for section, prefix in (
        ("training", _T),
        ("parallelism", _P),
        ("compile", "compile."),
    ):
        own = {
            n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)
        }
        if not own:
            continue
        kind = next(k for k, p in _SECTIONS.items() if p == prefix)
        lines = "".join(f"            {key}={value!r},\n" for key, value in own.items())
        parts.append(f"        {section}={kind}(\n{lines}        ),\n")
    mode = values.get("activation_checkpoint.mode", "none")
    option = values.get("activation_checkpoint.selective_ac_option", "op")
    if mode == "selective" and option != "op":
        raise DistIRError(
            "torchtitan recomputes every n-th layer by its TOML files only; write a .toml"
        )
    kinds = {text: kind for kind, text in _AC.items()}
    if mode in kinds:
        parts.append(f"        activation_checkpoint={kinds[mode]}.Config(),\n")
    return f'''"""A configuration of torchtitan; put it beside its config_registry."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.models.{name} import model_registry
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer


def {name}_plan() -> Trainer.Config:
    model_spec = model_registry({flavor!r})
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))
    return Trainer.Config(
        model_spec=model_spec,
        loss=ChunkedLossWrapper.Config(loss_fn=loss),
{"".join(parts)}    )
'''
