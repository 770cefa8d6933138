"""`distir build`: makes a model of any size, without weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from distir.frontends.options import PAGING, ServingOptions
from distir.tools.arguments.declared import add_options
from distir.tools.arguments.model import paging_of
from distir.tools.arguments.training import (
    add_float8_arguments,
    add_training_arguments,
    differentiate_pass,
    float8_passes,
)
from distir.tools.arguments.types import (
    non_negative_integer,
    non_negative_number,
    output_program,
    positive_integer,
)
from distir.transforms.precision.options import PrecisionOptions

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass


@dataclass(frozen=True)
class BuildOption:
    """An option of a model that the user may leave out."""

    help: str
    type: Callable[[str], Any] | None = positive_integer
    """The function that parses the option's value, or None for a switch."""


@dataclass(frozen=True)
class BuildableModel:
    """
    A model that `distir build` can make. `builder` is the module and the name of its
    builder function. `needed` has the options that are required unless a named size
    sets them. `options` maps the names of the builder's arguments to all other options.
    """

    help: str
    builder: str
    needed: tuple[str, ...]
    options: Mapping[str, BuildOption] = field(default_factory=dict[str, BuildOption])
    loss: str = "cross_entropy"
    norms: bool = False
    """
    Whether the model has batch normalisation, which behaves differently in training.
    """
    serves: bool = False
    """Whether the builder also builds the steps of generation."""


_TRANSFORMER = ("layers", "d_model", "heads", "vocab", "batch", "seq")
_WRITTEN_OUT = BuildOption(
    "write attention out in products and a softmax, instead of as one op", None
)
_FFN = BuildOption("width inside an MLP (default 4 times --d-model)")
_HEAD_DIM = BuildOption("width of a head (default --d-model / --heads)")
_IMAGE = BuildOption("height and width of a picture in pixels (default 224)")
_CLASSES = BuildOption("classes (default 1000)")

MODELS = {
    "gpt": BuildableModel(
        "a GPT-2 style decoder",
        "basic:build_gpt",
        _TRANSFORMER,
        {
            "dropout": BuildOption(
                "ratio of embeddings, attention probabilities and residual branches that "
                "a training step sets to zero (default 0); attention is written out then",
                non_negative_number,
            ),
            "dropout_seed": BuildOption(
                "seed of dropout's random numbers (default 0)", non_negative_integer
            ),
            "decode": BuildOption(
                "the step that generates the next token from a cache of the keys and "
                "values of N tokens; with --seq 1"
            ),
            "no_fused_attention": _WRITTEN_OUT,
        },
        serves=True,
    ),
    "moe": BuildableModel(
        "a decoder with GShard's mixtures of experts in every other layer",
        "basic:build_moe",
        (*_TRANSFORMER, "experts"),
        {
            "ffn": BuildOption(
                "width inside an MLP or expert (default 4 times --d-model)"
            ),
            "capacity_factor": BuildOption(
                "places of an expert, in those that evenly dealt tokens need (default 1)",
                non_negative_number,
            ),
            "no_fused_attention": _WRITTEN_OUT,
        },
        serves=True,
    ),
    "mlp": BuildableModel(
        "dense layers of one width",
        "basic:build_mlp",
        ("layers", "d_model", "batch"),
        loss="mse",
    ),
    "llama": BuildableModel(
        "a LLaMA: grouped queries, rotary positions, RMS norm, SwiGLU",
        "llama:build_llama",
        _TRANSFORMER,
        {
            "kv_heads": BuildOption("heads of keys and values (default --heads)"),
            "ffn": BuildOption(
                "width inside an MLP (default 8/3 of --d-model, up to a multiple of 256)"
            ),
            "theta": BuildOption(
                "base of the rotary positions' wave lengths (default 10000)",
                non_negative_number,
            ),
            "tied": BuildOption("the embedding is the output matrix too", None),
            "head_dim": _HEAD_DIM,
            "experts": BuildOption("experts in place of each MLP, as in Mixtral"),
            "top_k": BuildOption("experts that each token goes to (default 2)"),
        },
        serves=True,
    ),
    "bert": BuildableModel(
        "a BERT that fills in left out tokens",
        "bert:build_bert",
        _TRANSFORMER,
        {"ffn": _FFN, "no_fused_attention": _WRITTEN_OUT},
    ),
    "t5": BuildableModel(
        "a T5: an encoder and a decoder with relative positions",
        "t5:build_t5",
        _TRANSFORMER,
        {
            "target_seq": BuildOption("tokens of the target (default --seq)"),
            "ffn": _FFN,
            "head_dim": _HEAD_DIM,
        },
    ),
    "vit": BuildableModel(
        "a vision transformer that classifies pictures",
        "vit:build_vit",
        ("layers", "d_model", "heads", "classes", "batch"),
        {
            "image": _IMAGE,
            "patch": BuildOption("height and width of a patch in pixels (default 16)"),
        },
    ),
    "wide-resnet": BuildableModel(
        "a ResNet of bottleneck blocks of any width",
        "resnet:build_wide_resnet",
        ("layers", "channels", "batch"),
        {
            "width_factor": BuildOption(
                "channels of a 3 x 3 convolution, in those of a block (default 1)"
            ),
            "image": _IMAGE,
            "classes": _CLASSES,
        },
        norms=True,
    ),
    "vgg": BuildableModel(
        "VGG19 without dropout",
        "vgg:build_vgg",
        ("batch",),
        {
            "image": _IMAGE,
            "classes": _CLASSES,
            "width": BuildOption("width of the hidden layers behind (default 4096)"),
        },
    ),
    "unet": BuildableModel(
        "a U-Net that predicts the noise in a picture",
        "unet:build_unet",
        ("batch",),
        {
            "image": BuildOption(
                "height and width of a picture in pixels (default 32)"
            ),
            "channels": BuildOption("channels of the first level (default 128)"),
            "blocks": BuildOption("residual blocks of a level (default 2)"),
            "attention_at": BuildOption(
                "pixels a side where there is attention (default 16)"
            ),
            "groups": BuildOption("groups of a norm (default 32)"),
        },
        loss="mse",
    ),
}
"""The models that `distir build` can make, by name."""


_RESULTS_OR_CACHE = (
    "each layer's keys and values are results too, for --decode to go on from; with "
    "--serve, tokens of a sequence that the cache holds: prompt and new tokens"
)
"""The help of `--cache` for a GPT, which has it with and without a number."""

MOST_LAYERS = 10_000
"""
The largest number of layers. Building more would take hours, and no model has more.
"""


def _number_of_layers(text: str) -> int:
    """Parses a number of layers, at most `MOST_LAYERS`."""
    count = positive_integer(text)
    if count > MOST_LAYERS:
        raise argparse.ArgumentTypeError(
            f"a model of {count} layers cannot be built; at most {MOST_LAYERS} are possible"
        )
    return count


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from distir.frontends.models import SIZES

    models: Any = parser.add_subparsers(dest="model", required=True, metavar="MODEL")
    for name, model in MODELS.items():
        own = models.add_parser(name, help=model.help)
        sizes = SIZES.get(name, {})
        if sizes:
            own.add_argument(
                "--size",
                choices=tuple(sizes),
                help="a published size; options given besides replace its own",
            )
        for needed in model.needed:
            own.add_argument(
                _flag(needed),
                type=_number_of_layers if needed == "layers" else positive_integer,
                required=not any(needed in options for options in sizes.values())
                and not (needed == "seq" and model.serves),
                metavar="N",
            )
        for key, option in model.options.items():
            if option.type is None:
                own.add_argument(_flag(key), action="store_true", help=option.help)
            else:
                metavar = "X" if option.type is non_negative_number else "N"
                own.add_argument(
                    _flag(key),
                    dest=key,
                    type=option.type,
                    metavar=metavar,
                    help=option.help,
                )
        if model.serves:
            both: dict[str, Any] = {}
            if name == "gpt":
                both = {"nargs": "?", "const": True, "help": _RESULTS_OR_CACHE}
            add_options(own, ServingOptions, ("serve",))
            add_options(own, ServingOptions, ("cache",), **both)
            add_options(
                own,
                ServingOptions,
                ("prompt", *PAGING, "weights_dtype", "weights_group", "cache_dtype"),
            )
        _add_common(own)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PrecisionOptions, ("dtype",), default="f32", help=None)
    parser.add_argument(
        "-o", dest="output", type=output_program, required=True, metavar="model.mlir"
    )
    add_float8_arguments(parser)
    add_training_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from distir.tools.files import write_program
    from distir.tools.reports.reporting import progress

    with progress("building"):
        module = built(arguments)
    with progress(f"writing {arguments.output}"):
        write_program(module, arguments.output)
    return 0


def built(arguments: argparse.Namespace) -> ModuleOp:
    """
    Returns the program that the arguments of `distir build` describe. Raises
    DistIRError for options that do not fit the model.
    """
    from distir.tools.files import apply_passes, named_pass

    model = MODELS[arguments.model]
    if model.serves:
        _check_serving(arguments)
    differentiate = differentiate_pass(arguments, model.loss)
    sizes = _sizes(model, arguments)
    trains = differentiate is not None
    if _is_served(arguments):
        return _serving(model, sizes, arguments)
    if arguments.model == "gpt":
        module = _gpt(sizes, arguments, trains)
    else:
        module = _builder(model.builder)(
            **sizes, **({"trains": trains} if model.norms else {})
        )
    passes = float8_passes(arguments)
    if differentiate is not None:
        passes.append(differentiate)
    if arguments.float8 is not None:
        passes.append(named_pass("expand-float8"))
    apply_passes(module, *passes)
    return module


def _is_served(arguments: argparse.Namespace) -> bool:
    """Whether the arguments ask for the steps of generation (prefill and decode)."""
    return getattr(arguments, "serve", False)


def _check_serving(arguments: argparse.Namespace) -> None:
    """
    Raises DistIRError for options that cannot be combined with `--serve`, or need it.
    """
    from distir.errors import DistIRError

    if not arguments.serve:
        sized = arguments.cache is not None and arguments.cache is not True
        others = ("prompt", *PAGING, "weights_dtype", "cache_dtype")
        given = {"cache": sized, **{name: getattr(arguments, name) for name in others}}
        for option, is_given in given.items():
            if is_given:
                number = " with a number" if option == "cache" else ""
                raise DistIRError(
                    f"{_flag(option)}{number} is of use with --serve only; add it"
                )
        return
    others = {"seq", "training", "decode", "dropout", "dropout_seed", "float8"}
    others |= {"no_fused_attention", "capacity_factor", "float8_keep"}
    for option in sorted(others & vars(arguments).keys()):
        if getattr(arguments, option):
            raise DistIRError(f"{_flag(option)} does not go with --serve; leave it out")


def _serving(
    model: BuildableModel, sizes: dict[str, Any], arguments: argparse.Namespace
) -> ModuleOp:
    """
    Returns the program with the entries prefill and decode. Raises DistIRError for
    sizes that the model cannot have.
    """
    from distir.frontends.models.generation import build_serving
    from distir.frontends.serving import serving_sizes

    cache = None if arguments.cache is True else arguments.cache
    served = serving_sizes(
        sizes.pop("batch"), cache, arguments.prompt, **paging_of(arguments)
    )
    module = build_serving(_builder(model.builder), served, **sizes)
    if arguments.weights_dtype is None and arguments.cache_dtype is None:
        return module
    return _quantized(module, arguments)


def _quantized(module: ModuleOp, arguments: argparse.Namespace) -> ModuleOp:
    """
    Returns an inference program whose weights or caches have fewer bits, as in the
    arguments. Raises DistIRError if the program does not allow this.
    """
    from distir.passes.quantize_caches import QuantizeCachesPass
    from distir.passes.quantize_weights import QuantizeWeightsPass
    from distir.program import entry_points
    from distir.program.entries import joined, one_entry
    from distir.tools.files import apply_passes, named_pass

    entries = {name: one_entry(module, name) for name in entry_points(module)}
    passes: list[ModulePass] = []
    if arguments.weights_dtype is not None:
        passes.append(
            QuantizeWeightsPass(arguments.weights_dtype, arguments.weights_group)
        )
    if arguments.cache_dtype is not None:
        passes.append(QuantizeCachesPass(arguments.cache_dtype))
    for entry in entries.values():
        apply_passes(
            entry,
            named_pass("inline-calls"),
            *passes,
            named_pass("outline-repeats"),
        )
    return joined(entries)


def _builder(place: str) -> Callable[..., ModuleOp]:
    module, name = place.split(":")
    return getattr(import_module(f"distir.frontends.models.{module}"), name)


def _sizes(model: BuildableModel, arguments: argparse.Namespace) -> dict[str, Any]:
    """
    Returns the arguments of the model's builder. Options that the user gave take
    precedence over the options of the named size. Raises DistIRError if a required
    option is missing.
    """
    from distir.errors import DistIRError
    from distir.frontends.models import SIZES

    named = getattr(arguments, "size", None)
    published = SIZES.get(arguments.model, {})
    sizes = dict(published[named]) if named else {}
    for name in (*model.needed, *model.options):
        value = getattr(arguments, name)
        if value is not None and value is not False:
            sizes[name] = value
    without = {"seq"} if _is_served(arguments) else set[str]()
    needed = [name for name in model.needed if name not in without]
    missing = [_flag(name) for name in needed if name not in sizes]
    if missing:
        advice = f", or a --size ({', '.join(published)})" if published else ""
        raise DistIRError(
            f"distir build {arguments.model} needs {' and '.join(missing)}{advice}"
        )
    if sizes.pop("no_fused_attention", False):
        sizes["fused_attention"] = False
    return sizes | {"dtype": arguments.dtype}


def _gpt(
    sizes: dict[str, Any], arguments: argparse.Namespace, trains: bool
) -> ModuleOp:
    from distir.errors import DistIRError
    from distir.frontends.models.basic import build_gpt
    from distir.frontends.models.gpt_decoding import build_gpt_decoding

    if arguments.dropout and not trains:
        raise DistIRError("--dropout is of use with --training only; add it")
    if arguments.dropout_seed is not None and not arguments.dropout:
        raise DistIRError("--dropout-seed is of use with --dropout only; add it")
    if trains and (arguments.decode or arguments.cache):
        raise DistIRError(
            "a cache of keys and values is for inference; leave out --training, or "
            "--decode and --cache"
        )
    decode, seed = sizes.pop("decode", None), sizes.pop("dropout_seed", 0)
    if not decode:
        return build_gpt(**sizes, seed=seed, cache=bool(arguments.cache))
    if sizes.pop("seq") != 1 or arguments.cache:
        raise DistIRError(
            "--decode generates one token from a cache; add --seq 1 and leave out --cache"
        )
    sizes.pop("fused_attention", None)
    return build_gpt_decoding(**sizes, cached=decode)
