"""Writes a plan for eager PyTorch as one Python file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from math import prod
from textwrap import fill

from distir.exports.plan import EagerPlan
from distir.exports.tensor_parallel import ParallelStyle
from distir.lowering.source.text import broken

_WIDTH = 88
"""The greatest length of a line of the file, in characters."""


def eager_source(plan: EagerPlan, what: str, name: str) -> str:
    """
    Returns the text of a Python file that distributes a model by `plan`. `what` names
    the source of the plan. `name` is the module name of the file.
    """
    parts = [_docstring(plan, what, name), _imports(plan), _constants(plan)]
    text = "\n\n".join(part for part in parts if part)
    functions = [_mesh(plan)]
    if plan.stages is not None:
        functions.append(_stage_classes())
    functions.append(_parallelize(plan))
    if plan.stages is not None:
        functions.append(_pipeline(plan))
    return "\n\n\n".join([text, *functions]) + "\n"


def _axes(plan: EagerPlan) -> dict[str, int]:
    """Returns the size of each axis of the mesh of all devices, by name."""
    found: dict[str, int] = {}
    if plan.stages is not None:
        found["p"] = len(set(plan.stages.ranks))
    found.update(axis for axis in (plan.data, plan.tensor) if axis is not None)
    return found


def _docstring(plan: EagerPlan, what: str, name: str) -> str:
    axes = _axes(plan)
    count = prod(axes.values())
    lines = [
        f"{what} in eager PyTorch, as `distir export --to dtensor` wrote it.",
        "",
        f"On each of {count} ranks, where the model has the same values:",
        "",
        f"    import {name}",
        "",
        f'    mesh = {name}.make_mesh("cuda")',
    ]
    if plan.stages is None:
        lines.append(f"    model = {name}.parallelize(model, mesh)")
        lines.append("    optimizer = AdamW(model.parameters(), foreach=False)")
    else:
        lines += [
            f"    modules, schedule = {name}.pipeline(model, mesh, loss)",
            "    parameters = [p for module in modules for p in module.parameters()]",
            "    optimizer = AdamW(parameters, foreach=False)",
            "    losses = []  # of the micro-batches, on ranks that have the last stage",
            "    schedule.step(target=labels, losses=losses, **inputs)",
        ]
    lines.append("")
    if plan.data is not None:
        axis, size = plan.data
        lines += _wrapped(
            f'A batch is divided into {size} equal parts: a rank takes part mesh["{axis}"]'
            f".get_local_rank() of inputs and labels, and its loss is the mean over that "
            f"part. Gradients are means over the parts."
        )
    if plan.tensor is not None and plan.stages is None and plan.data is None:
        lines += _wrapped("All ranks take the whole batch.")
    if plan.micro_batches > 1 and plan.stages is None:
        lines += _wrapped(
            f"The plan adds up the gradients of {plan.micro_batches} micro-batches: call "
            f"backward for each of them, with the loss divided by {plan.micro_batches}, "
            f"before a step of the optimizer."
        )
    if plan.remarks:
        lines += ["", "What the plan says otherwise:", ""]
        for remark in plan.remarks:
            text = fill(
                remark, _WIDTH, initial_indent="- ", subsequent_indent="  ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            lines += text.splitlines()
    return '"""\n' + "\n".join(lines).rstrip() + '\n"""'


def _wrapped(text: str) -> list[str]:
    return fill(text, _WIDTH, break_long_words=False).splitlines()


def _imports(plan: EagerPlan) -> str:
    """Returns the sorted import statements of the file."""
    found: dict[str, set[str]] = {
        "torch.distributed.device_mesh": {"init_device_mesh"},
    }
    styles = plan.parallelism.styles.values()
    if styles:
        found["torch.distributed.tensor.parallel"] = {
            "parallelize_module",
            *map(_class, styles),
        }
        if not all(style.joined for style in styles):
            found["torch.distributed.tensor"] = {"Replicate"}
    if plan.recomputed:
        wrapper = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
        found[wrapper] = {"checkpoint_wrapper"}
    if plan.trains and plan.data is not None:
        if plan.sharding:
            found["torch.distributed.fsdp"] = {"fully_shard"}
        else:
            package = "torch.distributed._composable.replicate_with_fsdp"
            found[package] = {"replicate"}
    first = ""
    if plan.stages is not None:
        first = "from copy import deepcopy\n\nimport torch\n"
        found["torch"] = {"nn"}
        found["torch.distributed.pipelining"] = {"PipelineStage", plan.stages.schedule}
        found["torch.utils._pytree"] = {"tree_leaves"}
    lines: list[str] = []
    for module in sorted(found):
        # Classes before functions.
        names = sorted(found[module], key=lambda name: (name[0].islower(), name))
        line = f"from {module} import {', '.join(names)}"
        if len(line) > _WIDTH:
            inner = "".join(f"    {name},\n" for name in names)
            line = f"from {module} import (\n{inner})"
        lines.append(line)
    return first + "\n".join(lines)


def _constants(plan: EagerPlan) -> str:
    found: list[str] = []
    if plan.stages is not None:
        rows = [
            f"    [\n{_items(own, 8)}\n    ],  # on pipeline rank {rank}"
            for own, rank in zip(plan.stages.modules, plan.stages.ranks, strict=True)
        ]
        found.append("STAGES = [\n" + "\n".join(rows) + "\n]")
        found.append(f"RANKS = {list(plan.stages.ranks)}")
        found.append(f"MICRO_BATCHES = {plan.micro_batches}")
    if plan.parallelism.styles:
        found.append(_style_table(plan.parallelism.styles))
    if plan.tied and plan.parallelism.styles:
        rows = [f"    ({owner!r}, {other!r})," for owner, other in plan.tied]
        found.append("TIED = [\n" + "\n".join(rows) + "\n]")
    if plan.recomputed:
        found.append(f"RECOMPUTED = [\n{_items(plan.recomputed, 4)}\n]")
    if plan.trains and plan.data is not None and plan.blocks:
        found.append(f"BLOCKS = [\n{_items(plan.blocks, 4)}\n]")
    return "\n\n".join(found)


def _items(names: Iterable[str], indent: int) -> str:
    """Returns the items of a list of paths; consecutive layers share one line."""
    margin, rows = " " * indent, list[str]()
    for stem, numbers, suffixes in _runs(names):
        if numbers is None or len(numbers) < 2 or suffixes != [""]:
            own = [""] if numbers is None else [str(n) for n in numbers]
            rows += [
                f'{margin}"{stem}{n}{suffix}",' for n in own for suffix in suffixes
            ]
        else:
            rows.append(f'{margin}*[f"{stem}{{i}}" for i in {_range(numbers)}],')
    return "\n".join(rows)


def _style_table(styles: Mapping[str, ParallelStyle]) -> str:
    """
    Returns the definition of `TENSOR_PARALLEL`, the plan that the file passes to
    `parallelize_module`.
    """
    by_style: dict[ParallelStyle, list[str]] = {}
    for name, style in styles.items():
        by_style.setdefault(style, []).append(name)
    rows: list[str] = []
    for style, names in by_style.items():
        call = _call(style)
        for stem, numbers, suffixes in _runs(names):
            if numbers is None or len(numbers) < 2:
                own = [""] if numbers is None else [str(n) for n in numbers]
                rows += [f'    "{stem}{n}{s}": {call},' for n in own for s in suffixes]
                continue
            rows.append("    **{")
            rows.append(f'        f"{stem}{{i}}{{name}}": {call}')
            rows.append(f"        for i in {_range(numbers)}")
            rows.append("        for name in [")
            rows += [f'            "{suffix}",' for suffix in suffixes]
            rows += ["        ]", "    },"]
    return "TENSOR_PARALLEL = {\n" + "\n".join(rows) + "\n}"


def _class(style: ParallelStyle) -> str:
    return "ColwiseParallel" if style.columns else "RowwiseParallel"


def _call(style: ParallelStyle) -> str:
    if style.joined:
        return f"{_class(style)}()"
    if style.columns:
        return "ColwiseParallel(output_layouts=Replicate())"
    return "RowwiseParallel(input_layouts=Replicate())"


def _runs(names: Iterable[str]) -> Iterator[tuple[str, list[int] | None, list[str]]]:
    """
    Groups paths that differ only in the number of their layer. Yields for each group
    the text before the number, the numbers, and the texts after it. For a path without
    a number, the numbers are None.
    """
    found: dict[str, dict[int, list[str]]] = {}
    for name in names:
        parts = name.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
        if at is None:
            found[name] = {}
            continue
        suffix = ".".join(["", *parts[at + 1 :]])
        stem = ".".join([*parts[:at], ""])
        found.setdefault(stem, {}).setdefault(int(parts[at]), []).append(suffix)
    for stem, layers in found.items():
        if not layers:
            yield stem, None, [""]
            continue
        alike: dict[tuple[str, ...], list[int]] = {}
        for number, suffixes in layers.items():
            alike.setdefault(tuple(suffixes), []).append(number)
        for suffixes, numbers in alike.items():
            yield stem, numbers, list(suffixes)


def _range(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if list(numbers) != list(range(first, last + 1)):
        return str(tuple(numbers))
    return f"range({first}, {last + 1})" if first else f"range({last + 1})"


def _mesh(plan: EagerPlan) -> str:
    axes = _axes(plan)
    names = ", ".join(f'"{name}"' for name in axes)
    comma = "," if len(axes) == 1 else ""
    return f'''def make_mesh(device_type):
    """Returns the mesh of all ranks."""
    sizes, names = {tuple(axes.values())}, ({names}{comma})
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)'''


def _stage_classes() -> str:
    text = (files("distir.exports") / "stage.py").read_text("utf-8")
    return text.partition("STAGES: list[list[str]] = []")[2].strip()


def _parallelize(plan: EagerPlan) -> str:
    lines = ["def parallelize(model, mesh):"]
    styles, recomputed, blocks = "TENSOR_PARALLEL", "RECOMPUTED", "BLOCKS"
    whole = "model"
    if plan.stages is None:
        lines.append(
            '    """Distributes a model, in place, over the mesh of make_mesh."""'
        )
    else:
        lines.append(
            '    """Distributes a stage, in place, over the mesh of make_mesh."""'
        )
        lines.append("    model = stage.model")
        lines[0] = "def parallelize(stage, mesh):"
        recomputed, blocks = f"stage.own({recomputed})", f"stage.own({blocks})"
        whole = "stage"
    if plan.parallelism.styles:
        assert plan.tensor is not None
        if plan.stages is None:
            lines += [
                f"    for name in {styles}:",
                "        model.get_submodule(name)  # raises AttributeError without it",
            ]
        else:
            lines.append(
                f"    styles = {{n: {styles}[n] for n in stage.own({styles})}}"
            )
            styles = "styles"
        lines.append(
            f'    parallelize_module(model, mesh["{plan.tensor[0]}"], {styles})'
        )
        if plan.tied:
            lines += [
                "    for owner, other in TIED:  # splitting made two parameters of one",
                "        shared = model.get_submodule(owner).weight",
                "        model.get_submodule(other).weight = shared",
            ]
    if plan.recomputed:
        lines += [
            f"    for name in {recomputed}:",
            "        layer = model.get_submodule(name)",
            "        model.set_submodule(name, checkpoint_wrapper(layer))",
        ]
    if plan.trains and plan.data is not None:
        call = f'replicate({{}}, mesh=mesh["{plan.data[0]}"])'
        if plan.sharding:
            call = (
                f'fully_shard({{}}, mesh=mesh["{plan.data[0]}"], '
                f"reshard_after_forward={plan.sharding == 3})"
            )
        if plan.blocks:
            lines += [
                f"    for name in {blocks}:",
                f"        {call.format('model.get_submodule(name)')}",
            ]
        lines.append(f"    {call.format(whole)}")
    lines.append(f"    return {whole}")
    return "\n".join(line for row in lines for line in broken(row))


def _pipeline(plan: EagerPlan) -> str:
    assert plan.stages is not None
    several = len(plan.stages.ranks) > len(set(plan.stages.ranks))
    given = "stages" if several else "stages[0]"
    return f'''def pipeline(model, mesh, loss):
    """
    Returns the stages of this rank, as modules, and the schedule that runs them. `loss` is
    a function of (output, labels); `schedule.step` takes the inputs of the model by name.
    """
    device = next(model.parameters()).device
    rank, group = mesh["p"].get_local_rank(), mesh["p"].get_group()
    modules, stages = [], []
    for index in (i for i, own in enumerate(RANKS) if own == rank):
        stage = ModelStage(deepcopy(model) if RANKS.count(rank) > 1 else model, index)
        modules.append(parallelize(stage, mesh))
        stage.watch()
        stages.append(PipelineStage(stage, index, len(STAGES), device, group=group))
    return modules, {plan.stages.schedule}({given}, MICRO_BATCHES, loss_fn=loss)'''
